//! Direct reads of weights that are not in memory: past the page cache into the memory that products read from. Several
//! pieces are read at a time, while earlier ones are checked and rearranged. The disk therefore does not wait, and no
//! byte is copied. All memory here is the host's.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use bytes::Bytes;
use model_boss_engine::DecoderError;
use model_boss_kernels::MatrixLayout;
use model_boss_weights::store::{Extent, HostBuffer, Reads, WeightStore, read_all};
use rayon::prelude::*;

use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;

/// The most bytes of tensors that are read together: enough for the disk's full rate, and few to rearrange after the
/// last read.
const TOGETHER: u64 = 24 << 20;

/// A planned direct read of one tensor.
struct DirectRead {
    name: String,
    /// The tensor's name in the file.
    spelled: String,
    extent: Extent,
    /// The layout of a matrix that is used in its stored form.
    layout: Option<MatrixLayout>,
}

/// The direct reads of a load, in order.
pub(crate) struct Feed {
    store: Arc<dyn WeightStore>,
    portions: Vec<(Reads, Vec<DirectRead>)>,
}

/// A tensor that was read.
pub(crate) enum Arrived {
    /// A matrix that is ready for products.
    Matrix(Matrix),
    /// The tensor's bytes in the file's order.
    Bytes(Bytes),
}

impl Feed {
    /// Plans to read the tensors of these names for a CPU, in approximately that order.
    pub(crate) fn new(
        store: Arc<dyn WeightStore>,
        files: &ModelFiles,
        target: &WeightTarget,
        names: &[String],
    ) -> Result<Self, ModelError> {
        let mut portions: Vec<Vec<DirectRead>> = Vec::new();
        let mut bytes = 0;
        for name in names {
            let stored = files.get(name)?;
            let layout = target.stays(&stored).map(|shape| MatrixLayout { kind: stored.kind, shape });
            let spelled = files.spelled(name).into_owned();
            let item = DirectRead { extent: files.extent(name)?, layout, name: name.clone(), spelled };
            match portions.last_mut() {
                Some(portion) if bytes < TOGETHER => portion.push(item),
                _ => {
                    portions.push(vec![item]);
                    bytes = 0;
                }
            }
            bytes += stored.len();
        }
        let planned = |items: Vec<DirectRead>| {
            let extents: Vec<Extent> = items.iter().map(|item| item.extent).collect();
            (Reads::of(&extents), items)
        };
        Ok(Self { store, portions: portions.into_iter().map(planned).collect() })
    }

    /// Reads one portion after the other, until all are read, one fails or the receiver is dropped.
    pub(crate) fn run(&self, to: &Sender<Result<HostBuffer, ModelError>>) {
        for (reads, _) in &self.portions {
            let portion = self.read(reads);
            let failed = portion.is_err();
            if to.send(portion).is_err() || failed {
                return;
            }
        }
    }

    fn read(&self, reads: &Reads) -> Result<HostBuffer, ModelError> {
        let memory = |error: std::io::Error| ModelError::Device(DecoderError::OutOfMemory(error.to_string()));
        let mut buffer = HostBuffer::new(reads.buffer()).map_err(memory)?;
        read_all(self.store.as_ref(), reads, &mut buffer)?;
        Ok(buffer)
    }
}

/// The receiver of the portions that [`Feed::run`] sends. It converts them to weights.
pub(crate) struct Intake<'a> {
    feed: &'a Feed,
    portions: Receiver<Result<HostBuffer, ModelError>>,
    /// The number of the next portion.
    next: usize,
    there: HashMap<String, Arrived>,
}

impl<'a> Intake<'a> {
    /// An intake, and the channel that [`Feed::run`] sends to.
    pub(crate) fn new(feed: &'a Feed) -> (Self, Sender<Result<HostBuffer, ModelError>>) {
        let (sender, portions) = mpsc::channel();
        (Self { feed, portions, next: 0, there: HashMap::new() }, sender)
    }

    /// Waits for a tensor. `None` if it is not among the planned reads, or was taken before.
    pub(crate) fn take(&mut self, name: &str) -> Result<Option<Arrived>, ModelError> {
        loop {
            if let Some(arrived) = self.there.remove(name) {
                return Ok(Some(arrived));
            }
            let Some((reads, items)) = self.feed.portions.get(self.next) else { return Ok(None) };
            let Ok(portion) = self.portions.recv() else { return Ok(None) };
            self.there.extend(arrange(reads, items, portion?)?);
            self.next += 1;
        }
    }
}

/// Checks matrices and rearranges them in place, on all threads.
fn arrange(
    reads: &Reads,
    items: &[DirectRead],
    mut buffer: HostBuffer,
) -> Result<impl Iterator<Item = (String, Arrived)>, ModelError> {
    let mut placed: Vec<(&Range<usize>, &DirectRead)> = reads.places().iter().zip(items).collect();
    // Places are sorted by their beginning, so that the buffer can be split at them.
    placed.sort_unstable_by_key(|(place, _)| place.start);
    let (mut rest, mut at) = (&mut *buffer, 0);
    let mut parts = Vec::new();
    for (place, item) in &placed {
        let cut =
            rest.split_at_mut_checked(place.start - at).and_then(|(_, rest)| rest.split_at_mut_checked(place.len()));
        let Some((part, behind)) = cut else { return Err(bad(item, "lies over another".to_owned())) };
        parts.push((*item, part));
        (rest, at) = (behind, place.end);
    }
    parts.into_par_iter().try_for_each(|(item, part)| match item.layout {
        Some(layout) => layout.check(part).map(|()| layout.arrange(part)).map_err(|what| bad(item, what)),
        None => Ok(()),
    })?;
    let bytes = Bytes::from_owner(buffer);
    let arrived = placed.into_iter().map(|(place, item)| {
        let bytes = bytes.slice(place.clone());
        let arrived = match item.layout {
            Some(layout) => Arrived::Matrix(Matrix::Stored(layout.kernel(bytes).map_err(|what| bad(item, what))?)),
            None => Arrived::Bytes(bytes),
        };
        Ok((item.name.clone(), arrived))
    });
    Ok(arrived.collect::<Result<Vec<_>, ModelError>>()?.into_iter())
}

fn bad(item: &DirectRead, what: String) -> ModelError {
    ModelError::Tensor { name: item.spelled.clone(), what }
}
