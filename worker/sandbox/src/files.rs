//! The files that a confined process may open.

use std::path::PathBuf;

/// The files that a confined process may open. Paths that do not exist are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedFiles {
    pub(crate) read: Vec<PathBuf>,
    pub(crate) write: Vec<PathBuf>,
    pub(crate) run: Vec<PathBuf>,
}

impl AllowedFiles {
    /// A file that may be read, or a folder with everything below it.
    pub fn read(&mut self, path: impl Into<PathBuf>) {
        self.read.push(path.into());
    }

    /// A file that exists and may be written.
    pub fn write(&mut self, path: impl Into<PathBuf>) {
        self.write.push(path.into());
    }

    /// A program or library that may be read and run, or a folder with everything below it.
    pub fn run(&mut self, path: impl Into<PathBuf>) {
        self.run.push(path.into());
    }

    /// The paths that may be read.
    pub fn readable(&self) -> &[PathBuf] {
        &self.read
    }
}
