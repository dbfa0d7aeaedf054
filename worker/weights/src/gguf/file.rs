//! A mapped GGUF file on disk. It keeps its path, which its errors name.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::{Header, HeaderError, TensorInfo};
use crate::ahead::{cached_share, will_need, will_need_all};

/// The approximate size in bytes of a header with a large vocabulary. So many bytes are requested at once, because
/// reading single pages when they are touched takes longer.
const LONGEST_USUAL_HEADER: u64 = 8 << 20;

/// A mapped file. Its header is read on request and borrows from the map.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    map: Mmap,
}

impl GgufFile {
    /// Maps a file and requests that its beginning be read ahead. No data is read yet.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let fail = |source| FileError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(fail)?;
        if !file.metadata().map_err(fail)?.is_file() {
            return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
        }
        #[allow(unsafe_code)]
        // SAFETY: the bytes are only read. A writer that changes the file meanwhile can cause wrong results, or end
        // this process by SIGBUS if it shortens the file. This is one reason why a worker is a process of its own.
        let map = unsafe { Mmap::map(&file) }.map_err(fail)?;
        will_need_all(&map, 0, LONGEST_USUAL_HEADER);
        Ok(Self { path: path.to_owned(), map })
    }

    /// Reads and checks the header.
    pub fn header(&self) -> Result<Header<'_>, FileError> {
        Header::parse(&self.map).map_err(|source| FileError::Header { path: self.path.clone(), source })
    }

    /// Reads and checks the header, and refuses tensors of types that this project cannot compute with.
    pub fn computable_header(&self) -> Result<Header<'_>, FileError> {
        let header = self.header()?;
        self.computable(&header)?;
        Ok(header)
    }

    /// Refuses a header of this file with tensors of types that this project cannot compute with.
    pub(super) fn computable(&self, header: &Header<'_>) -> Result<(), FileError> {
        match header.first_unsupported() {
            None => Ok(()),
            Some(tensor) => Err(FileError::Unsupported {
                path: self.path.clone(),
                tensor: tensor.name.to_owned(),
                kind: tensor.kind.name(),
            }),
        }
    }

    /// The bytes of a tensor, or none if the tensor belongs to another, longer file.
    pub fn bytes(&self, tensor: &TensorInfo<'_>) -> &[u8] {
        self.slice(tensor.offset, tensor.bytes)
    }

    /// A range of the file's bytes; empty if the range exceeds the file.
    pub(super) fn slice(&self, offset: u64, bytes: u64) -> &[u8] {
        let range = usize::try_from(offset).ok().zip(usize::try_from(bytes).ok());
        range.and_then(|(offset, bytes)| self.map.get(offset..offset.checked_add(bytes)?)).unwrap_or_default()
    }

    /// The share of the file that is in the page cache, from 0 to 1.
    pub(super) fn cached_share(&self) -> f64 {
        cached_share(&self.map)
    }

    /// Requests that a range of the file be read ahead.
    pub(super) fn will_need(&self, offset: u64, bytes: u64) {
        will_need(&self.map, offset, bytes);
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the whole file.
    pub fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Whether the file has no bytes, and so is no GGUF file.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}

/// The reason why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be opened or mapped.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file's header is invalid.
    #[error("{}: {source}", path.display())]
    Header {
        /// The path of the file.
        path: PathBuf,
        /// The fault of the header.
        source: HeaderError,
    },
    /// The file has a tensor of a type that this project cannot compute with.
    #[error("{}: tensor `{tensor}` is {kind}, which this worker cannot compute; llama-server can run it", path.display())]
    Unsupported {
        /// The path of the file.
        path: PathBuf,
        /// The name of the first tensor of that type.
        tensor: String,
        /// The name of the tensor's type.
        kind: &'static str,
    },
}
