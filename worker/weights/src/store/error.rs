//! Reasons why a store could not deliver a piece of a file.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why a piece could not be read.
#[derive(Debug, thiserror::Error)]
pub enum WeightStoreError {
    /// The operating system refused to open or read a file.
    #[error("{} cannot be read at byte {offset}: {source}", path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The offset of the piece.
        offset: u64,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file was written, cut or lengthened since it was opened.
    #[error("{} was changed while it is served; load the model again", path.display())]
    Changed {
        /// The path of the file.
        path: PathBuf,
    },
    /// Direct reads were required, and the file system refuses them.
    #[error("{} cannot be read past the page cache: {why}; `store = \"auto\"` reads it through the cache", path.display())]
    NotDirect {
        /// The path of the file.
        path: PathBuf,
        /// The system's or the file system's reason.
        why: String,
    },
    /// There is no memory to hold bytes in.
    #[error("no memory to hold {bytes} bytes of weights: {source}")]
    Memory {
        /// The number of bytes to be held.
        bytes: u64,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A piece of a file that the store does not have.
    #[error("there is no file {file}")]
    NoFile {
        /// The file's index in the store.
        file: usize,
    },
    /// A quantised matrix could not be put into blocks.
    #[error("{0}")]
    Quantised(String),
    /// A tensor that is stored in another order could not be put into its own.
    #[error("{0}")]
    Made(String),
    /// A fault of the program; standard error has the details.
    #[error("a thread that read weights ended early")]
    Panicked,
    /// A fault of the caller.
    #[error("a buffer has {has} bytes where {needs} are needed")]
    TooShort {
        /// The bytes needed.
        needs: usize,
        /// The bytes of the buffer.
        has: usize,
    },
}

pub(super) fn unreadable(path: &Path, offset: u64) -> impl FnOnce(io::Error) -> WeightStoreError {
    move |source| WeightStoreError::Read { path: path.to_owned(), offset, source }
}
