//! The place of a model's files: on this machine, or in a repository of a hub.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{ByteCount, HubRepo};

/// Where a model's files are: at `path`, or in the repository `hf` of a hub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Source {
    /// A folder, or one file. Relative paths start at the manifest's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// A repository of a hub, `ORG/NAME` (OP-6). `model-boss pull` downloads its files into Hugging Face's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hf: Option<HubRepo>,
    /// The GGUF file in the repository, or the first part of one; without it, the repository's safetensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The branch, tag or commit of the repository; `main` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The bytes of the weights, as `scan` and `pull` recorded them. They give the size of a model whose files are not
    /// on this machine (RC-20).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<ByteCount>,
}

/// A fault in a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceFault {
    /// The source has neither a path nor a repository.
    #[error("has neither; write path = \"…\", or hf = \"ORG/NAME\" for a repository of a hub")]
    Neither,
    /// The source has both.
    #[error("'path' and 'hf' say different places; keep one")]
    Both,
    /// A field that belongs to a repository is beside a path.
    #[error("'{0}' goes with 'hf', the repository of a hub, and there is none")]
    NoRepository(&'static str),
    /// The file is no path inside of a repository.
    #[error("'file' = \"{0}\" is no path inside of the repository")]
    File(String),
    /// The file is not one that a model can be loaded from alone.
    #[error("'file' = \"{0}\" is no .gguf file; leave 'file' out for the repository's safetensors")]
    NotGguf(String),
    /// The revision has characters that no branch or commit has.
    #[error("'revision' = \"{0}\" names no branch, tag or commit")]
    Revision(String),
}

/// The branch that is meant where no revision is named.
pub const MAIN_REVISION: &str = "main";

impl Source {
    /// The files at a path of this machine.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: Some(path.into()), ..Self::default() }
    }

    /// Checks that the fields fit together.
    pub fn check(&self) -> Result<(), SourceFault> {
        match (&self.path, &self.hf) {
            (None, None) => Err(SourceFault::Neither),
            (Some(_), Some(_)) => Err(SourceFault::Both),
            (Some(_), None) if self.file.is_some() => Err(SourceFault::NoRepository("file")),
            (Some(_), None) if self.revision.is_some() => Err(SourceFault::NoRepository("revision")),
            (Some(_), None) => Ok(()),
            (None, Some(_)) => {
                if let Some(file) = &self.file {
                    check_hub_path(file)?;
                    if !file.to_ascii_lowercase().ends_with(".gguf") {
                        return Err(SourceFault::NotGguf(file.clone()));
                    }
                }
                self.revision.as_deref().map_or(Ok(()), check_revision)
            }
        }
    }

    /// The branch, tag or commit of the repository.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(MAIN_REVISION)
    }
}

/// Checks a path inside of a repository: it stays there, whatever folder it is joined to.
pub fn check_hub_path(path: &str) -> Result<(), SourceFault> {
    let is_name = |part: &str| !part.is_empty() && part != "." && part != "..";
    let plain = path.split('/').all(is_name) && !path.contains(['\\', '\0', '\n']) && path.len() <= 1024;
    if plain { Ok(()) } else { Err(SourceFault::File(path.to_owned())) }
}

/// Checks the name of a branch, a tag or a commit.
pub fn check_revision(revision: &str) -> Result<(), SourceFault> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-/".contains(&b);
    let is_name = |part: &str| !part.is_empty() && !part.starts_with('.');
    let plain = revision.len() <= 200 && revision.bytes().all(allowed) && revision.split('/').all(is_name);
    if plain && !revision.contains("..") { Ok(()) } else { Err(SourceFault::Revision(revision.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_6_a_source_is_one_place() {
        let check = |text: &str| toml::from_str::<Source>(text).map_err(|error| error.to_string()).unwrap().check();
        for good in [
            "path = \"weights\"",
            "hf = \"org/model\"",
            "hf = \"org/model\"\nfile = \"q4/m-00001-of-00002.gguf\"\nrevision = \"refs/pr/1\"\nbytes = 7",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, fault) in [
            ("", SourceFault::Neither),
            ("bytes = 1", SourceFault::Neither),
            ("path = \"a\"\nhf = \"b/c\"", SourceFault::Both),
            ("path = \"a\"\nfile = \"b.gguf\"", SourceFault::NoRepository("file")),
            ("path = \"a\"\nrevision = \"main\"", SourceFault::NoRepository("revision")),
            ("hf = \"b/c\"\nfile = \"../m.gguf\"", SourceFault::File("../m.gguf".into())),
            ("hf = \"b/c\"\nfile = \"/m.gguf\"", SourceFault::File("/m.gguf".into())),
            ("hf = \"b/c\"\nfile = \"m.safetensors\"", SourceFault::NotGguf("m.safetensors".into())),
            ("hf = \"b/c\"\nrevision = \"a/../b\"", SourceFault::Revision("a/../b".into())),
        ] {
            assert_eq!(check(bad), Err(fault), "{bad}");
        }
        assert!(toml::from_str::<Source>("hf = \"../x\"").unwrap_err().to_string().contains("'../x'"));
    }
}
