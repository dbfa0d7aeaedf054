//! Faults of weight files, in words for the person who has to download them again.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

/// A reason why weights cannot be used. Every message names the file, and the tensor if there is one.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The operating system refused a read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The path is a folder, pipe or device, not a file.
    #[error("{} is not a regular file", path.display())]
    NotRegular {
        /// The path that is not a regular file.
        path: PathBuf,
    },
    /// The path has no weights in a format that this build reads.
    #[error("no weights in {}: {hint}", path.display())]
    NoWeights {
        /// The path that was searched.
        path: PathBuf,
        /// The files that were found instead, and what to do.
        hint: String,
    },
    /// The folder has more than one model.
    #[error("{} holds several GGUF models ({names}); name one of them", path.display())]
    Several {
        /// The folder that was searched.
        path: PathBuf,
        /// The names of the models' files.
        names: String,
    },
    /// The file ends too early.
    #[error("{file} is truncated: {what} needs bytes {start}..{end}, the file has {len}")]
    Truncated {
        /// The file's name.
        file: String,
        /// The part that is cut: `the header`, or `tensor 'NAME'`.
        what: String,
        /// Offset of the part's first byte.
        start: u64,
        /// Offset of the first byte after the part.
        end: u64,
        /// The file's length in bytes.
        len: u64,
    },
    /// The file's content is not in the format that its name implies.
    #[error("{file} is not a valid {format} file: {what}")]
    Malformed {
        /// The file's name.
        file: String,
        /// The format that the file should have.
        format: &'static str,
        /// The fault, in words.
        what: String,
    },
    /// The description of a tensor is invalid.
    #[error("{file}: tensor '{tensor}' {what}")]
    BadTensor {
        /// The file's name.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// The fault, in words.
        what: String,
    },
    /// The index of a sharded model lists a file that does not exist.
    #[error("{index} lists {shard}, which is missing; fetch the model again")]
    MissingShard {
        /// The index file's name.
        index: String,
        /// The missing file's name.
        shard: String,
    },
    /// The model has no such tensor.
    #[error("the weights have no tensor '{tensor}'")]
    MissingTensor {
        /// The tensor's name.
        tensor: String,
    },
    /// The file's length is not the same as when its header was read.
    #[error("{file} changed while it was read; is it still being downloaded?")]
    Changed {
        /// The file's name.
        file: String,
    },
}

/// Whether an error, or its cause, is a failed read of a file that exists, because a disk or the network failed. The
/// file may be good, and a later read may work.
pub fn is_read_failure(error: &(dyn Error + 'static)) -> bool {
    use io::ErrorKind::{InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied};
    let of_the_file = [InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied];
    // An error without an error number of the system was made by this crate, about the file's content.
    let failed = |error: &io::Error| error.raw_os_error().is_some() && !of_the_file.contains(&error.kind());
    std::iter::successors(Some(error), |&error| error.source())
        .find_map(|error| error.downcast_ref::<io::Error>())
        .is_some_and(failed)
}

/// Text from a file, made safe to print: without control characters, and not longer than a line.
pub(crate) fn printable(words: &str) -> String {
    const LONGEST: usize = 200;
    let mut text = String::new();
    for c in words.chars().take(LONGEST) {
        match c {
            '\'' | '"' | '\\' => text.push(c),
            _ => text.extend(c.escape_debug()),
        }
    }
    if words.chars().nth(LONGEST).is_some() {
        text.push('…');
    }
    text
}

/// The last component of a path, or the whole path if it has none.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
