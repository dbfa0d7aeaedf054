//! The file of API keys.

use std::fmt;
use std::path::{Path, PathBuf};

/// The keys that give access to the API. `Debug` never shows one.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKeys(Vec<String>);

/// Why the file is no valid list of keys.
#[derive(Debug, thiserror::Error)]
pub enum ApiKeysError {
    /// The file is absent or not readable.
    #[error("{0} cannot be read: {1}")]
    Read(PathBuf, #[source] std::io::Error),
    /// The file has no key, only comments.
    #[error("{0} holds no key; write one key per line")]
    Empty(PathBuf),
    /// A key is so short that it could be guessed. The number is the key's line.
    #[error("{0}:{1}: the key is shorter than 16 characters; make one with `openssl rand -hex 32`")]
    Short(PathBuf, usize),
}

impl ApiKeys {
    /// Reads one key per line; empty lines and lines that start with `#` are skipped.
    pub fn read(path: &Path) -> Result<Self, ApiKeysError> {
        let text = std::fs::read_to_string(path).map_err(|error| ApiKeysError::Read(path.to_owned(), error))?;
        let mut keys = Vec::new();
        for (number, line) in text.lines().enumerate() {
            match line.trim() {
                "" => {}
                comment if comment.starts_with('#') => {}
                short if short.len() < 16 => return Err(ApiKeysError::Short(path.to_owned(), number + 1)),
                key => keys.push(key.to_owned()),
            }
        }
        if keys.is_empty() { Err(ApiKeysError::Empty(path.to_owned())) } else { Ok(Self(keys)) }
    }

    /// Whether `offered` is one of the keys; takes the same time for every text of the same length.
    pub fn accept(&self, offered: &str) -> bool {
        let same = |key: &String| {
            let (a, b) = (key.as_bytes(), offered.as_bytes());
            a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (x, y)| difference | (x ^ y)) == 0
        };
        self.0.iter().filter(|key| same(key)).count() > 0
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({})", self.0.len())
    }
}
