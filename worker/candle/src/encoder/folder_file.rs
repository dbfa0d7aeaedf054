//! Small files of JSON in a model's folder.

use std::path::Path;

use model_boss_weights::{SmallFileError, read_small_file};
use serde::de::DeserializeOwned;

use crate::error::ModelError;
use crate::spec::ConfigJsonError;

/// The limit on each file, in bytes. The settings of a tokenizer list all tokens that were added to it.
const LONGEST: u64 = 16 << 20;

/// A file of JSON; none if it does not exist.
pub(crate) fn file<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ModelError> {
    let read = |bytes: Vec<u8>| serde_json::from_slice(&bytes);
    bytes(path)?.map(read).transpose().map_err(|error| bad(format!("{}: {error}", path.display())))
}

/// A file of text; none if it does not exist.
pub(super) fn text_file(path: &Path) -> Result<Option<String>, ModelError> {
    Ok(bytes(path)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

fn bytes(path: &Path) -> Result<Option<Vec<u8>>, ModelError> {
    read_small_file(path, LONGEST).map_err(|error| match error {
        SmallFileError::Read { path, source } => ModelError::ReadConfig { path, source },
        error => bad(error.to_string()),
    })
}

/// A folder whose files cannot be used.
pub(crate) fn bad(what: String) -> ModelError {
    ModelError::Config(ConfigJsonError::Malformed(what))
}
