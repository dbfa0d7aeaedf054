//! A whole model in GGUF: one file, or the parts it was split into. The module owns the maps and finds each tensor's
//! bytes, and does not interpret it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::store::Extent;

use super::{FileError, GgufFile, Header, KeyError, TensorType};

/// The largest number of a part: it has five digits.
const MAX_PARTS: u64 = 99_999;

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
        let mut tensors = BTreeMap::new();
        let mut take = |file: usize, part: &GgufFile, header: &Header<'_>| -> Result<(), GgufModelError> {
            check(part, header)?;
            for tensor in header.tensors() {
                let shape = tensor.shape().iter().map(|length| usize::try_from(*length)).collect::<Result<_, _>>();
                let Ok(shape) = shape else { continue };
                let stored =
                    StoredTensor { kind: tensor.kind, shape, bytes: tensor.bytes, file, offset: tensor.offset };
                if tensors.insert(tensor.name.to_owned(), stored).is_some() {
                    return Err(GgufModelError::Twice { path: part.path().to_owned(), tensor: tensor.name.to_owned() });
                }
            }
            Ok(())
        };
        let first = GgufFile::open(path)?;
        // A vocabulary makes a header long: it is read once.
        let header = first.header()?;
        let parts = header.find::<u64>("split.count")?.unwrap_or(1);
        if parts <= 1 {
            take(0, &first, &header)?;
            drop(header);
            return Ok(Self { files: vec![first], tensors });
        }
        drop(header);
        let files = open_parts(path, parts)?;
        for (file, part) in files.iter().enumerate() {
            take(file, part, &part.header()?)?;
        }
        Ok(Self { files, tensors })
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

fn open_parts(path: &Path, parts: u64) -> Result<Vec<GgufFile>, GgufModelError> {
    let refuse = |what: String| GgufModelError::Parts { path: path.to_owned(), what };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some((stem, count)) = split_name(&name).map(|(stem, _, count)| (stem, count)) else {
        return Err(refuse(format!("it is one of {parts} parts, but is not named like NAME-00001-of-{parts:05}.gguf")));
    };
    if count != parts || parts > MAX_PARTS {
        return Err(refuse(format!("its name says {count} parts, its header {parts}")));
    }
    (1..=parts)
        .map(|number| {
            let file = GgufFile::open(&path.with_file_name(format!("{stem}-{number:05}-of-{parts:05}.gguf")))?;
            // The number of a part begins at 0 in the header, and at 1 in the file's name.
            let said = file.header()?.find::<u64>("split.no")?;
            if said.is_some_and(|said| said + 1 != number) {
                let what = format!("part {number} says it is part {}", said.unwrap_or_default().saturating_add(1));
                return Err(refuse(what));
            }
            Ok(file)
        })
        .collect()
}

/// `NAME-00002-of-00003.gguf` → (`NAME`, 2, 3).
pub(crate) fn split_name(name: &str) -> Option<(&str, u64, u64)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| if text.len() == 5 { text.parse().ok() } else { None };
    Some((stem, digits(number)?, digits(count)?))
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
        /// The part that was named.
        path: PathBuf,
        /// The fault, in words.
        what: String,
    },
    /// Two parts hold the same tensor.
    #[error("{}: tensor `{tensor}` stands in another part too", path.display())]
    Twice {
        /// The path of the later of two parts that disagree.
        path: PathBuf,
        /// The name of the tensor.
        tensor: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::HeaderWriter;

    fn write(path: &Path, number: u32, count: u32, tensor: &str) {
        let mut header = HeaderWriter::new();
        header.set("split.no", &number).unwrap();
        header.set("split.count", &count).unwrap();
        header.tensor(tensor, TensorType::F32, &[2]).unwrap();
        let mut body = header.begin(std::fs::File::create(path).unwrap()).unwrap();
        body.write(&[number as u8; 8]).unwrap();
        body.finish().unwrap();
    }

    #[test]
    fn parts_are_joined_whichever_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let part = |number: u32| folder.path().join(format!("m-{number:05}-of-00002.gguf"));
        write(&part(1), 0, 2, "a");
        write(&part(2), 1, 2, "b");
        for named in [1, 2] {
            let model = GgufModel::open(&part(named)).unwrap();
            assert_eq!(model.files().len(), 2);
            let bytes = |name| model.bytes(model.get(name).unwrap());
            assert_eq!((bytes("a"), bytes("b")), (&[0; 8][..], &[1; 8][..]));
        }
    }

    #[test]
    fn what_is_wrong_with_parts_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let part = |number: u32| folder.path().join(format!("m-{number:05}-of-00002.gguf"));
        let words = |path: &Path| GgufModel::open(path).unwrap_err().to_string();
        write(&part(1), 0, 2, "a");
        assert!(words(&part(1)).contains("m-00002-of-00002.gguf"), "{}", words(&part(1)));
        write(&part(2), 0, 2, "b");
        assert!(words(&part(1)).contains("part 2 says it is part 1"), "{}", words(&part(1)));
        write(&part(2), 1, 2, "a");
        assert!(words(&part(1)).contains("another part"), "{}", words(&part(1)));
        let renamed = folder.path().join("other.gguf");
        std::fs::rename(part(1), &renamed).unwrap();
        assert!(words(&renamed).contains("NAME-00001-of-00002.gguf"), "{}", words(&renamed));
    }

    #[test]
    fn names_of_parts() {
        assert_eq!(split_name("a-b-00002-of-00003.gguf"), Some(("a-b", 2, 3)));
        for other in ["a.gguf", "a-2-of-3.gguf", "a-00002-of-00003.bin", "-of-.gguf"] {
            assert_eq!(split_name(other), None);
        }
    }
}
