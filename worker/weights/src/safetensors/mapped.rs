//! Weight files mapped into memory. The page cache delivers their bytes, read when first touched.

use std::fs::File;

use memmap2::Mmap;

use super::index::TensorIndex;
use crate::ahead::{cached_share, will_need};
use crate::error::{WeightsError, printable};
use crate::store::Extent;

/// A [`TensorIndex`] with its files mapped, read-only.
///
/// A mapped file may be truncated by another process. The next access to a missing page then kills this process with
/// SIGBUS, which no check here can prevent. The worker is built for it: it serves one model, and its supervisor
/// reports its death. Replacing a file (write beside, rename over) is harmless, because the mapping keeps the old
/// one.
#[derive(Debug)]
pub struct MappedWeights {
    index: TensorIndex,
    maps: Vec<Mmap>,
}

impl MappedWeights {
    /// Maps every file of the index. The call fails when a file has another length than when its header was checked.
    pub fn map(index: TensorIndex) -> Result<Self, WeightsError> {
        let mut maps = Vec::new();
        for file in index.files() {
            let unreadable = |source| WeightsError::Read { path: file.path.clone(), source };
            let opened = File::open(&file.path).map_err(unreadable)?;
            let map = map_file(&opened).map_err(unreadable)?;
            if map.len() as u64 != file.len {
                return Err(WeightsError::Changed { file: file.name() });
            }
            maps.push(map);
        }
        Ok(Self { index, maps })
    }

    /// The index of the mapped tensors.
    pub fn index(&self) -> &TensorIndex {
        &self.index
    }

    /// The smallest share of any file that is in the page cache, from 0 to 1, as far as the system reports it.
    pub fn cached_share(&self) -> f64 {
        self.maps.iter().map(cached_share).fold(1.0, f64::min)
    }

    /// Requests that a piece of a file be read ahead. It has at most [`crate::ASKED_AT_ONCE`] bytes.
    pub fn will_need(&self, piece: Extent) {
        if let Some(map) = self.maps.get(piece.file) {
            will_need(map, piece.offset, piece.len);
        }
    }

    /// A tensor's bytes as stored: little-endian, row after row.
    pub fn bytes(&self, name: &str) -> Result<&[u8], WeightsError> {
        let entry = self.index.require(name)?;
        let range = usize::try_from(entry.range.start).ok().zip(usize::try_from(entry.range.end).ok());
        self.maps.get(entry.file.0).zip(range).and_then(|(map, (start, end))| map.get(start..end)).ok_or_else(|| {
            WeightsError::BadTensor {
                file: self.index.file_name(entry.file),
                tensor: printable(name),
                what: "lies outside of its file".to_owned(),
            }
        })
    }
}

#[allow(unsafe_code)]
fn map_file(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the mapping is read-only and every byte pattern is a valid `u8`. Model files are not written while they
    // are served; `MappedWeights` describes the effect of a write all the same.
    unsafe { Mmap::map(file) }
}
