//! The file of keys, one in each line: a client's record as JSON, or the text of a key without a name. Comments stay
//! where they are when the file is written again.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

use model_boss_lease_store::replace_state_file;
use model_boss_protocol::ClientId;

use crate::record::{KeyRecord, KeyRecordError};

/// The shortest key that a person may choose.
const SHORTEST: usize = 16;

/// The lines of the file.
#[derive(Clone, Default)]
pub struct KeyFile {
    lines: Vec<KeyLine>,
}

#[derive(Clone)]
enum KeyLine {
    /// A comment, or nothing.
    Comment(String),
    /// The text of a key without a name. It permits everything.
    Unnamed(String),
    Record(KeyRecord),
}

/// Why the file is no valid list of keys.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file is absent or not readable.
    #[error("{0} cannot be read: {1}")]
    Read(PathBuf, #[source] io::Error),
    /// The file cannot be written.
    #[error("{0} cannot be written: {1}")]
    Write(PathBuf, #[source] io::Error),
    /// The file has no key, only comments.
    #[error("{0} holds no key; make one with `model-boss keys create NAME`")]
    Empty(PathBuf),
    /// A key is so short that it could be guessed. The number is the key's line.
    #[error("{0}:{1}: the key is shorter than {SHORTEST} characters; make one with `model-boss keys create NAME`")]
    Short(PathBuf, usize),
    /// A line begins like a record, and is none.
    #[error("{0}:{1}: {2}")]
    Record(PathBuf, usize, String),
    /// A record is not valid.
    #[error("{0}:{1}: {2}")]
    Key(PathBuf, usize, #[source] KeyRecordError),
    /// Two records have the same name.
    #[error("{0}:{1}: '{2}' has keys in an earlier line already")]
    Twice(PathBuf, usize, String),
}

impl KeyFile {
    /// Reads the file, which must have a key.
    pub fn read(path: &Path) -> Result<Self, KeyFileError> {
        let text = std::fs::read_to_string(path).map_err(|error| KeyFileError::Read(path.to_owned(), error))?;
        let file = Self::parse(path, &text)?;
        if file.is_empty() { Err(KeyFileError::Empty(path.to_owned())) } else { Ok(file) }
    }

    /// Reads the text of a file. It may hold no key.
    pub fn parse(path: &Path, text: &str) -> Result<Self, KeyFileError> {
        let mut names = BTreeSet::new();
        let mut lines = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let of_line = || (path.to_owned(), number);
            let read = match line.trim() {
                comment if comment.is_empty() || comment.starts_with('#') => KeyLine::Comment(line.to_owned()),
                record if record.starts_with('{') => {
                    let (path, number) = of_line();
                    // The error repeats no value of the line.
                    let record: KeyRecord = serde_json::from_str(record)
                        .map_err(|error| KeyFileError::Record(path.clone(), number, error.to_string()))?;
                    record.check().map_err(|error| KeyFileError::Key(path.clone(), number, error))?;
                    if !names.insert(record.name.clone()) {
                        return Err(KeyFileError::Twice(path, number, record.name.to_string()));
                    }
                    KeyLine::Record(record)
                }
                short if short.len() < SHORTEST => {
                    let (path, number) = of_line();
                    return Err(KeyFileError::Short(path, number));
                }
                key => KeyLine::Unnamed(key.to_owned()),
            };
            lines.push(read);
        }
        Ok(Self { lines })
    }

    /// Writes the file as a whole, for its owner alone.
    pub fn write(&self, path: &Path) -> Result<(), KeyFileError> {
        let failed = |error| KeyFileError::Write(path.to_owned(), error);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut text = String::new();
        for line in &self.lines {
            let line = match line {
                KeyLine::Comment(line) | KeyLine::Unnamed(line) => line.clone(),
                KeyLine::Record(record) => serde_json::to_string(record).map_err(|error| failed(error.into()))?,
            };
            // Writing to a text cannot fail.
            let _ = writeln!(text, "{line}");
        }
        replace_state_file(path, text.as_bytes()).map_err(failed)
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| matches!(line, KeyLine::Comment(_)))
    }

    /// Every client's record, in the order of the file.
    pub fn records(&self) -> impl Iterator<Item = &KeyRecord> {
        self.lines.iter().filter_map(|line| match line {
            KeyLine::Record(record) => Some(record),
            KeyLine::Comment(_) | KeyLine::Unnamed(_) => None,
        })
    }

    /// Keys without a name, as they are written.
    pub fn unnamed(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().filter_map(|line| match line {
            KeyLine::Unnamed(key) => Some(key.as_str()),
            KeyLine::Comment(_) | KeyLine::Record(_) => None,
        })
    }

    /// The record of a client.
    pub fn record_mut(&mut self, name: &ClientId) -> Option<&mut KeyRecord> {
        self.lines.iter_mut().find_map(|line| match line {
            KeyLine::Record(record) if record.name == *name => Some(record),
            _ => None,
        })
    }

    /// Adds a record behind all others.
    pub fn add(&mut self, record: KeyRecord) {
        self.lines.push(KeyLine::Record(record));
    }

    /// Removes the record of a client; whether there was one.
    pub fn remove(&mut self, name: &ClientId) -> bool {
        let before = self.lines.len();
        self.lines.retain(|line| !matches!(line, KeyLine::Record(record) if record.name == *name));
        self.lines.len() < before
    }
}
