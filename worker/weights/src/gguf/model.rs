//! A whole model in GGUF: one file, or the parts it was split into. The module owns the maps and finds each tensor's
//! bytes, and does not interpret it.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::part_name::PartName;
use crate::store::Extent;

use super::{FileError, GgufFile, Header, KeyError, TensorType};

/// The mapped files of a model, every header checked.
#[derive(Debug)]
pub struct GgufModel {
    files: Vec<GgufFile>,
    tensors: BTreeMap<String, StoredTensor>,
}

/// The place, shape and type of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// The type of the tensor's elements.
    pub kind: TensorType,
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    /// Bytes of the tensor.
    pub bytes: u64,
    file: usize,
    offset: u64,
}

impl StoredTensor {
    /// The index in [`GgufModel::files`], and the range in that file.
    pub fn extent(&self) -> Extent {
        Extent { file: self.file, offset: self.offset, len: self.bytes }
    }
}

impl GgufModel {
    /// Maps a model's file, or every part of it when it is split; any part may be named. Tensors of types this project
    /// cannot compute with are refused.
    pub fn open(path: &Path) -> Result<Self, GgufModelError> {
        Self::read_with(path, GgufFile::computable)
    }

    /// Opens a model as [`Self::open`] does, but also with tensors of types that this project cannot compute with.
    pub fn read(path: &Path) -> Result<Self, GgufModelError> {
        Self::read_with(path, |_, _| Ok(()))
    }

    fn read_with(
        path: &Path,
        check: impl Fn(&GgufFile, &Header<'_>) -> Result<(), FileError>,
    ) -> Result<Self, GgufModelError> {
        let mut model = Self { files: Vec::new(), tensors: BTreeMap::new() };
        let named = GgufFile::open(path)?;
        // A vocabulary makes a header long: the header of a file that is named first is read once.
        let header = named.header()?;
        let Some(split) = Split::of(path, &header)? else {
            check(&named, &header)?;
            model.take(&named, &header)?;
            drop(header);
            model.files.push(named);
            return Ok(model);
        };
        let paths = split.paths(path)?;
        let mut first = None;
        if paths.first().is_some_and(|first| first == path) {
            check(&named, &header)?;
            first = Some(FirstPart::of(path, 1, &split, &header)?);
            model.take(&named, &header)?;
            drop(header);
            model.files.push(named);
        }
        for (number, path) in (1..).zip(&paths).skip(model.files.len()) {
            let part = GgufFile::open(path)?;
            let header = part.header()?;
            check(&part, &header)?;
            match &first {
                Some(first) => first.check(path, number, &header)?,
                None => first = Some(FirstPart::of(path, number, &split, &header)?),
            }
            model.take(&part, &header)?;
            drop(header);
            model.files.push(part);
        }
        if let Some(first) = first {
            first.check_sum(&paths, model.tensors.len() as u64)?;
        }
        Ok(model)
    }

    /// Adds the tensors of the next file.
    fn take(&mut self, part: &GgufFile, header: &Header<'_>) -> Result<(), GgufModelError> {
        let file = self.files.len();
        for tensor in header.tensors() {
            let shape = tensor.shape().iter().map(|length| usize::try_from(*length)).collect::<Result<_, _>>();
            let Ok(shape) = shape else { continue };
            let stored = StoredTensor { kind: tensor.kind, shape, bytes: tensor.bytes, file, offset: tensor.offset };
            if let Some(before) = self.tensors.insert(tensor.name.to_owned(), stored) {
                let other = self.files.get(before.file).map_or_else(PathBuf::new, |other| other.path().to_owned());
                return Err(GgufModelError::Twice {
                    path: part.path().to_owned(),
                    other,
                    tensor: tensor.name.to_owned(),
                });
            }
        }
        Ok(())
    }

    /// The header that holds the model's metadata: the only one, or the first part's.
    pub fn header(&self) -> Result<Header<'_>, GgufModelError> {
        match self.files.first() {
            Some(file) => Ok(file.header()?),
            None => Err(GgufModelError::Parts { path: PathBuf::new(), what: "there is no part".to_owned() }),
        }
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name)
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &StoredTensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// A tensor's bytes as stored. The slice is empty where the tensor is of another model.
    pub fn bytes(&self, tensor: &StoredTensor) -> &[u8] {
        self.files.get(tensor.file).map_or(&[], |file| file.slice(tensor.offset, tensor.bytes))
    }

    /// The smallest share of any file that is in the page cache, from 0 to 1, as far as the system reports it.
    pub fn cached_share(&self) -> f64 {
        self.files.iter().map(GgufFile::cached_share).fold(1.0, f64::min)
    }

    /// Requests that a piece of a file be read ahead. It has at most [`crate::ASKED_AT_ONCE`] bytes.
    pub fn will_need(&self, piece: Extent) {
        if let Some(file) = self.files.get(piece.file) {
            file.will_need(piece.offset, piece.len);
        }
    }

    /// The files, in order.
    pub fn files(&self) -> &[GgufFile] {
        &self.files
    }
}

/// The most missing parts that a message lists.
const MOST_NAMED: usize = 4;

/// The remedy for a part that does not fit the others.
const REPLACE: &str = "download or copy that part again, from the source of the others";

/// The keys by which a part says that it is one.
struct Split {
    /// The number of this part, from 0.
    number: Option<u64>,
    /// The number of parts.
    count: u64,
    /// The number of tensors of all parts.
    tensors: Option<u64>,
}

impl Split {
    /// The keys of a file; `None` if it is a whole model.
    fn of(path: &Path, header: &Header<'_>) -> Result<Option<Self>, GgufModelError> {
        let number = |key: &str| {
            let found = header.find::<u64>(key);
            found.map_err(|error| refusal(path, error.to_string()))
        };
        let Some(count) = number("split.count")?.filter(|count| *count > 1) else { return Ok(None) };
        Ok(Some(Self { number: number("split.no")?, count, tensors: number("split.tensors.count")? }))
    }

    /// The paths of all parts, which are beside the named one. Each exists.
    fn paths(&self, named: &Path) -> Result<Vec<PathBuf>, GgufModelError> {
        let parts = self.count;
        let name = named.file_name().unwrap_or_default().to_string_lossy();
        let Some(part) = PartName::of(&name) else {
            let what = format!("it is one of {parts} parts, but is not named like NAME-00001-of-{parts:05}.gguf");
            return Err(refusal(named, format!("{what}; give every part its original name")));
        };
        if part.count != parts {
            let what = format!("its name says {} parts, its header {parts}; give it its original name", part.count);
            return Err(refusal(named, what));
        }
        let paths: Vec<PathBuf> = (1..=parts).map(|number| named.with_file_name(part.sibling(number))).collect();
        let is_missing = |path: &&PathBuf| std::fs::metadata(path).is_err_and(|e| e.kind() == ErrorKind::NotFound);
        let missing: Vec<&PathBuf> = paths.iter().filter(is_missing).collect();
        if missing.is_empty() {
            return Ok(paths);
        }
        let name = |path: &&PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut names: Vec<String> = missing.iter().take(MOST_NAMED).map(name).collect();
        if let Some(more) = missing.len().checked_sub(MOST_NAMED).filter(|more| *more > 0) {
            names.push(format!("{more} more"));
        }
        let (missing, names) = (missing.len(), names.join(", "));
        let what = format!("the model lacks {missing} of its {parts} parts: {names}");
        Err(refusal(named, format!("{what}; put all parts into one folder")))
    }
}

/// The facts of the first part that later parts must agree with.
struct FirstPart {
    count: u64,
    tensors: Option<u64>,
    /// Names of the model, of those keys that the part has.
    names: Vec<(&'static str, String)>,
}

impl FirstPart {
    /// The names of a model. Most writers give them to the first part alone.
    const NAMES: [&'static str; 2] = ["general.architecture", "general.name"];

    fn of(path: &Path, number: u64, named: &Split, header: &Header<'_>) -> Result<Self, GgufModelError> {
        let text = |key: &'static str| Some((key, header.find::<&str>(key).ok().flatten()?.to_owned()));
        let names = Self::NAMES.into_iter().filter_map(text).collect();
        let tensors = Split::of(path, header)?.and_then(|split| split.tensors);
        let first = Self { count: named.count, tensors, names };
        first.check(path, number, header)?;
        Ok(first)
    }

    /// Checks that a file is this part of the model.
    fn check(&self, path: &Path, number: u64, header: &Header<'_>) -> Result<(), GgufModelError> {
        let count = self.count;
        let Some(split) = Split::of(path, header)? else {
            let what =
                format!("its name says that it is part {number} of {count}, its header that it is a whole model");
            return Err(refusal(path, format!("{what}; {REPLACE}")));
        };
        let said = split.number.unwrap_or(number - 1);
        if split.count != count || said != number - 1 {
            let (said, parts) = (said.saturating_add(1), split.count);
            let what = format!("its name says that it is part {number} of {count}, its header part {said} of {parts}");
            return Err(refusal(path, format!("{what}; {REPLACE}")));
        }
        let of_another = |why: String| refusal(path, format!("it is a part of another model: {why}; {REPLACE}"));
        if let (Some(here), Some(there)) = (split.tensors, self.tensors)
            && here != there
        {
            return Err(of_another(format!("its model has {here} tensors, that of the first part {there}")));
        }
        for (key, there) in &self.names {
            let here = header.find::<&str>(key).ok().flatten();
            if let Some(here) = here.filter(|here| here != there) {
                let (here, there) = (here.escape_debug(), there.escape_debug());
                return Err(of_another(format!("its `{key}` is '{here}', that of the first part '{there}'")));
            }
        }
        Ok(())
    }

    /// Checks the number of tensors of all parts together.
    fn check_sum(&self, paths: &[PathBuf], found: u64) -> Result<(), GgufModelError> {
        match (self.tensors, paths.first()) {
            (Some(said), Some(first)) if said != found => {
                let what = format!("the model has {said} tensors by its header, but its {} parts {found}", paths.len());
                Err(refusal(first, format!("{what}; download or copy all parts again, from one source")))
            }
            _ => Ok(()),
        }
    }
}

fn refusal(path: &Path, what: String) -> GgufModelError {
    GgufModelError::Parts { path: path.to_owned(), what }
}

/// The reason why a model's files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GgufModelError {
    /// One of the files is invalid.
    #[error(transparent)]
    File(#[from] FileError),
    /// A key has the wrong type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The parts do not make a whole.
    #[error("{}: {what}", path.display())]
    Parts {
        /// The faulty part, or the one that was named where others are missing.
        path: PathBuf,
        /// The fault, in words.
        what: String,
    },
    /// Two parts hold the same tensor.
    #[error(
        "{}: tensor `{}` is in {} too, so one of the two is a part of another model; download or copy both again, from \
         one source",
        path.display(), tensor.escape_debug(), other.display()
    )]
    Twice {
        /// The path of the later of two parts that disagree.
        path: PathBuf,
        /// The path of the earlier one.
        other: PathBuf,
        /// The name of the tensor.
        tensor: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{HeaderWriter, ToValue};

    /// Writes a part with one tensor; `more` adds further keys.
    fn write_with(path: &Path, tensor: &str, number: u8, more: impl FnOnce(&mut HeaderWriter)) {
        let mut header = HeaderWriter::new();
        more(&mut header);
        header.tensor(tensor, TensorType::F32, &[2]).unwrap();
        let mut body = header.begin(std::fs::File::create(path).unwrap()).unwrap();
        body.write(&[number; 8]).unwrap();
        body.finish().unwrap();
    }

    fn set(header: &mut HeaderWriter, key: &str, value: impl ToValue) {
        header.set(key, &value).unwrap();
    }

    /// Writes a part with the keys and types of `llama-gguf-split`.
    fn write(path: &Path, number: u16, count: u16, tensor: &str) {
        write_with(path, tensor, number as u8, |header| {
            set(header, "split.no", number);
            set(header, "split.count", count);
            set(header, "split.tensors.count", 2_i32);
        });
    }

    #[test]
    fn parts_are_joined_whichever_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let part = |number: u32| folder.path().join(format!("m-{number:05}-of-00002.gguf"));
        write(&part(1), 0, 2, "a");
        write(&part(2), 1, 2, "b");
        for named in [1, 2] {
            let model = GgufModel::open(&part(named)).unwrap();
            let paths: Vec<&Path> = model.files().iter().map(GgufFile::path).collect();
            assert_eq!(paths, [part(1), part(2)]);
            let bytes = |name| model.bytes(model.get(name).unwrap());
            assert_eq!((bytes("a"), bytes("b")), (&[0; 8][..], &[1; 8][..]));
        }
    }

    #[test]
    fn what_is_wrong_with_parts_is_named_with_the_file_and_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let part = |number: u32| folder.path().join(format!("m-{number:05}-of-00002.gguf"));
        let says = |named: &Path, parts: &[&str]| {
            let words = GgufModel::open(named).unwrap_err().to_string();
            parts.iter().for_each(|part| assert!(words.contains(part), "'{part}' is not in: {words}"));
        };
        write(&part(1), 0, 2, "a");
        says(&part(1), &["the model lacks 1 of its 2 parts: m-00002-of-00002.gguf", "put all parts into"]);
        std::fs::rename(part(1), part(2)).unwrap();
        says(&part(2), &["2 parts: m-00001-of-00002.gguf"]);
        write(&part(1), 0, 2, "a");
        says(&part(1), &["m-00002-of-00002.gguf: ", "part 2 of 2, its header part 1 of 2", "again"]);
        write(&part(2), 1, 3, "b");
        says(&part(1), &["m-00002-of-00002.gguf: ", "part 2 of 2, its header part 2 of 3"]);
        says(&part(2), &["m-00002-of-00002.gguf: its name says 2 parts, its header 3"]);
        write(&part(2), 1, 2, "a");
        says(&part(1), &["m-00002-of-00002.gguf: tensor `a` is in ", "m-00001-of-00002.gguf too", "again"]);
        write_with(&part(2), "b", 1, |_| {});
        says(&part(1), &["m-00002-of-00002.gguf: ", "its header that it is a whole model"]);
        write_with(&part(2), "b", 1, |header| {
            set(header, "split.no", u64::from(u32::MAX) << 31);
            set(header, "split.count", 2_u16);
        });
        says(&part(1), &["m-00002-of-00002.gguf: ", "its header part 9223372034707292161 of 2"]);
        write_with(&part(2), "b", 1, |header| set(header, "split.count", "two"));
        says(&part(1), &["m-00002-of-00002.gguf: ", "split.count"]);
        write(&part(2), 1, 2, "b");
        let bytes = std::fs::read(part(2)).unwrap();
        for len in [0, 3, 20, 100, bytes.len() - 32] {
            std::fs::write(part(2), &bytes[..len]).unwrap();
            says(&part(1), &["m-00002-of-00002.gguf: ", "cut short or damaged"]);
        }
        let renamed = folder.path().join("other.gguf");
        std::fs::rename(part(1), &renamed).unwrap();
        says(&renamed, &["other.gguf: ", "NAME-00001-of-00002.gguf"]);
    }

    #[test]
    fn a_part_of_another_model_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let part = |number: u32| folder.path().join(format!("m-{number:05}-of-00002.gguf"));
        let write = |number: u16, tensor: &str, tensors: i32, name: &str| {
            write_with(&part(u32::from(number) + 1), tensor, 0, |header| {
                set(header, "split.no", number);
                set(header, "split.count", 2_u16);
                set(header, "split.tensors.count", tensors);
                set(header, "general.name", name);
            });
        };
        let words = || GgufModel::open(&part(1)).unwrap_err().to_string();
        write(0, "a", 2, "one");
        write(1, "b", 3, "one");
        assert!(words().contains("00002-of-00002.gguf: it is a part of another model: its model has 3"), "{}", words());
        write(1, "b", 2, "other");
        assert!(words().contains("its `general.name` is 'other', that of the first part 'one'"), "{}", words());
        write(1, "b", 2, "one");
        assert!(GgufModel::open(&part(1)).is_ok());
        write(0, "a", 5, "one");
        write(1, "b", 5, "one");
        assert!(words().contains("has 5 tensors by its header, but its 2 parts 2; download"), "{}", words());
    }
}
