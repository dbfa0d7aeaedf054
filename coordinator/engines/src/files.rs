//! The choice among a model's files for llama-server.

use std::path::{Path, PathBuf};

/// The file to load, and the projector for images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LlamaFiles {
    /// The weights; for a model in parts, the first part.
    pub model: PathBuf,
    /// The projector of a model that accepts images.
    pub projector: Option<PathBuf>,
}

/// No choice could be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoLlamaFiles {
    /// The folder or path has no suitable file.
    #[error("llama-server reads .gguf files, and there is none at {0}")]
    None(PathBuf),
    /// Only later parts of a split model are there.
    #[error(
        "llama-server opens a split model by its first part, which is missing beside {0}; put all parts into one folder"
    )]
    NoFirstPart(PathBuf),
    /// Several files are suitable, and the operator has to choose.
    #[error("there are several models at {folder}: {}; name one as the source", .names.join(", "))]
    Several {
        /// The folder with the files.
        folder: PathBuf,
        /// The names of the files.
        names: Vec<String>,
    },
}

/// Chooses among `found`, the files at `source`. If `source` is one part of a model, they include its neighbours.
pub fn llama_files(source: &Path, found: &[PathBuf]) -> Result<LlamaFiles, NoLlamaFiles> {
    let ggufs = || found.iter().filter(|path| path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf")));
    let projector = ggufs().find(|path| is_projector(path)).cloned();
    let models: Vec<&PathBuf> = ggufs().filter(|path| !is_projector(path) && !is_later_part(path)).collect();
    if models.iter().any(|path| path.as_path() == source) {
        return Ok(LlamaFiles { model: source.to_owned(), projector: projector.filter(|path| path != source) });
    }
    match models.as_slice() {
        [] => Err(match ggufs().find(|path| is_later_part(path)) {
            Some(later) => NoLlamaFiles::NoFirstPart(later.clone()),
            None => NoLlamaFiles::None(source.to_owned()),
        }),
        [one] => Ok(LlamaFiles { model: (*one).clone(), projector }),
        several => Err(NoLlamaFiles::Several {
            folder: source.to_owned(),
            names: several.iter().map(|path| name(path)).collect(),
        }),
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Whether the file is a projector, published beside the model as `mmproj-….gguf`.
fn is_projector(path: &Path) -> bool {
    name(path).to_ascii_lowercase().contains("mmproj")
}

/// Whether the file is a later part, such as `…-00002-of-00003.gguf`: llama-server finds it from the first part.
fn is_later_part(path: &Path) -> bool {
    let name = name(path);
    let part =
        name.rsplit_once("-of-").and_then(|(before, _)| before.rsplit_once('-')).map(|(_, part)| part.to_owned());
    part.and_then(|part| part.parse::<u32>().ok()).is_some_and(|part| part > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(source: &str, names: &[&str]) -> Result<LlamaFiles, NoLlamaFiles> {
        llama_files(Path::new(source), &names.iter().map(PathBuf::from).collect::<Vec<_>>())
    }

    #[test]
    fn rc_17_the_first_part_and_the_projector_are_found() {
        let files =
            choose("/m", &["/m/x-00001-of-00002.gguf", "/m/x-00002-of-00002.gguf", "/m/mmproj-f16.gguf"]).unwrap();
        assert_eq!(files.model, Path::new("/m/x-00001-of-00002.gguf"));
        assert_eq!(files.projector.as_deref(), Some(Path::new("/m/mmproj-f16.gguf")));
        assert_eq!(choose("/m/b.gguf", &["/m/a.gguf", "/m/b.gguf"]).unwrap().model, Path::new("/m/b.gguf"));
    }

    #[test]
    fn rc_17_a_later_part_leads_to_the_first_one() {
        let (first, later) = ("/m/x-00001-of-00002.gguf", "/m/x-00002-of-00002.gguf");
        assert_eq!(choose(later, &[first, later]).unwrap().model, Path::new(first));
        for source in [later, "/m"] {
            let error = choose(source, &[later]).unwrap_err();
            assert_eq!(error, NoLlamaFiles::NoFirstPart(later.into()));
            assert!(error.to_string().contains("missing beside /m/x-00002-of-00002.gguf"), "{error}");
        }
    }

    #[test]
    fn rc_17_no_file_or_several_are_named() {
        assert_eq!(choose("/m", &["/m/model.safetensors"]), Err(NoLlamaFiles::None("/m".into())));
        let error = choose("/m", &["/m/a.gguf", "/m/b.gguf"]).unwrap_err().to_string();
        assert!(error.contains("a.gguf, b.gguf"), "{error}");
    }
}
