//! The weight files of a source, chosen by their names. If a name is ambiguous, the file's first four bytes decide.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::{WeightsError, file_name};
use crate::part_name::PartName;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The file to read first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Located {
    /// One file with all tensors.
    Safetensors(PathBuf),
    /// The index of a model in several files.
    Sharded(PathBuf),
}

/// Finds the weights of a source. With both forms in a folder the single file is taken, as `transformers` does.
pub(crate) fn locate(source: &Path) -> Result<Located, WeightsError> {
    let metadata =
        std::fs::metadata(source).map_err(|error| WeightsError::Read { path: source.to_owned(), source: error })?;
    if !metadata.is_dir() {
        return by_name(source);
    }
    let single = source.join(SINGLE);
    if single.exists() {
        return Ok(Located::Safetensors(single));
    }
    let index = source.join(INDEX);
    if index.exists() {
        return Ok(Located::Sharded(index));
    }
    Err(WeightsError::NoWeights { path: source.to_owned(), hint: hint(source) })
}

/// The GGUF file of a source: the source itself, or the only one in a folder without safetensors. `None` for a source
/// of another kind. Of a split model it is the first part.
pub fn gguf_file(source: &Path) -> Result<Option<PathBuf>, WeightsError> {
    if !source.is_dir() {
        return Ok(is_gguf(source).then(|| source.to_owned()));
    }
    if source.join(SINGLE).exists() || source.join(INDEX).exists() {
        return Ok(None);
    }
    let unreadable = |error| WeightsError::Read { path: source.to_owned(), source: error };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(source).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned();
        // A projector for images is not a model by itself.
        if name.ends_with(".gguf") && !name.starts_with("mmproj") {
            names.push(name);
        }
    }
    names.sort();
    // Parts of one model are adjacent after the sort. The first one that is there opens the model, or tells what lacks.
    names.dedup_by(|later, first| {
        PartName::of(later).zip(PartName::of(first)).is_some_and(|(later, first)| first.same_model(&later))
    });
    match names.as_slice() {
        [] => Ok(None),
        [only] => Ok(Some(source.join(only))),
        several => Err(WeightsError::Several { path: source.to_owned(), names: several.join(", ") }),
    }
}

fn is_gguf(file: &Path) -> bool {
    let name = file_name(file);
    let mut magic = [0; 4];
    name.ends_with(".gguf")
        || !name.contains(".safetensors")
            && file.is_file()
            && File::open(file).and_then(|mut file| file.read_exact(&mut magic)).is_ok_and(|()| &magic == b"GGUF")
}

/// The folder with a source's `config.json` and tokenizer: the source itself, or the folder of a weight file.
pub fn model_folder(source: &Path) -> &Path {
    if source.is_dir() {
        return source;
    }
    match source.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn by_name(file: &Path) -> Result<Located, WeightsError> {
    let name = file_name(file);
    if name.ends_with(".safetensors") {
        Ok(Located::Safetensors(file.to_owned()))
    } else if name.ends_with(".safetensors.index.json") {
        Ok(Located::Sharded(file.to_owned()))
    } else {
        Err(WeightsError::NoWeights { path: file.to_owned(), hint: hint_for(&name).unwrap_or_else(expected) })
    }
}

/// A hint at the files of a folder without safetensors.
fn hint(folder: &Path) -> String {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut hints: Vec<String> = entries.filter_map(|entry| hint_for(&entry.file_name().to_string_lossy())).collect();
    hints.sort();
    hints.into_iter().next().unwrap_or_else(expected)
}

fn hint_for(name: &str) -> Option<String> {
    if name.ends_with(".gguf") {
        Some(format!("{name} is GGUF, not safetensors"))
    } else if name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth") {
        Some(format!("{name} is a pickle, which is never read; convert the model to safetensors"))
    } else if name.ends_with(".part") || name.ends_with(".incomplete") {
        Some(format!("{name} looks like an unfinished download"))
    } else {
        None
    }
}

fn expected() -> String {
    format!("expected {SINGLE} or {INDEX}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in files {
            std::fs::write(folder.path().join(name), b"x").unwrap();
        }
        folder
    }

    #[test]
    fn a_single_file_wins_over_shards() {
        let both = folder(&[SINGLE, INDEX]);
        assert_eq!(locate(both.path()).unwrap(), Located::Safetensors(both.path().join(SINGLE)));
        let sharded = folder(&[INDEX]);
        assert_eq!(locate(sharded.path()).unwrap(), Located::Sharded(sharded.path().join(INDEX)));
        assert_eq!(locate(&sharded.path().join(INDEX)).unwrap(), Located::Sharded(sharded.path().join(INDEX)));
    }

    #[test]
    fn what_stands_there_instead_is_named() {
        for (name, said) in [("a-q4.gguf", "GGUF"), ("pytorch_model.bin", "pickle"), ("notes.txt", "expected model.")] {
            let folder = folder(&[name]);
            assert!(locate(folder.path()).unwrap_err().to_string().contains(said), "{name}");
            assert!(locate(&folder.path().join(name)).unwrap_err().to_string().contains(said), "{name}");
        }
        assert!(matches!(locate(Path::new("/no/such/model")), Err(WeightsError::Read { .. })));
    }

    #[test]
    fn a_gguf_file_is_found_by_name_or_by_its_first_bytes() {
        let one = folder(&["a.gguf", "mmproj-a.gguf", "README.md"]);
        assert_eq!(gguf_file(one.path()).unwrap(), Some(one.path().join("a.gguf")));
        assert_eq!(gguf_file(&one.path().join("a.gguf")).unwrap(), Some(one.path().join("a.gguf")));
        assert_eq!(gguf_file(&one.path().join("README.md")).unwrap(), None);
        let blob = one.path().join("sha256-0123");
        std::fs::write(&blob, b"GGUF and so on").unwrap();
        assert_eq!(gguf_file(&blob).unwrap(), Some(blob));
        let parts = folder(&["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"]);
        assert_eq!(gguf_file(parts.path()).unwrap(), Some(parts.path().join("a-00001-of-00002.gguf")));
        let first_lacks = folder(&["a-00002-of-00003.gguf", "a-00003-of-00003.gguf"]);
        assert_eq!(gguf_file(first_lacks.path()).unwrap(), Some(first_lacks.path().join("a-00002-of-00003.gguf")));
        assert!(gguf_file(folder(&["a-00001-of-00002.gguf", "b-00001-of-00002.gguf"]).path()).is_err());
        assert_eq!(gguf_file(folder(&["a.gguf", SINGLE]).path()).unwrap(), None, "safetensors win");
        assert_eq!(gguf_file(folder(&[]).path()).unwrap(), None);
        let words = gguf_file(folder(&["q4.gguf", "q8.gguf"]).path()).unwrap_err().to_string();
        assert!(words.contains("q4.gguf, q8.gguf"), "{words}");
    }

    #[test]
    fn the_folder_of_a_file_is_its_parent() {
        let folder = folder(&[SINGLE]);
        assert_eq!(model_folder(folder.path()), folder.path());
        assert_eq!(model_folder(&folder.path().join(SINGLE)), folder.path());
        assert_eq!(model_folder(Path::new("model.safetensors")), Path::new("."));
    }
}
