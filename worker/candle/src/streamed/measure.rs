//! Measuring a store's rate by several reads at different places, before layers are planned. It takes at most a quarter
//! of a second.

use std::ops::Range;
use std::time::{Duration, Instant};

use model_boss_weights::store::{Extent, HostBuffer, PAGE, Reads, WeightStore, WeightStoreError, read_all};

use super::table::LayerTable;

/// The most reads for the measurement, not counting those of the load itself.
const READS: usize = 8;
/// The time after which no further read begins.
const LIMIT: Duration = Duration::from_millis(250);
/// The most bytes of one read, which every block has at least.
const LARGEST: u64 = 32 << 20;

/// The times of reads of two sizes.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadTimes {
    /// Bytes and seconds of reads as large as a block.
    large: Vec<(u64, f64)>,
    /// Seconds of reads of one page.
    small: Vec<f64>,
}

impl ReadTimes {
    /// Measures reads at places throughout some layers, into a buffer whose pages were touched.
    pub(super) fn of(
        table: &LayerTable,
        layers: &Range<usize>,
        store: &dyn WeightStore,
        into: &mut HostBuffer,
    ) -> Result<Self, WeightStoreError> {
        touch(into);
        let mut times = Self::default();
        let begun = Instant::now();
        for reads in samples(table, layers, into.len()) {
            if begun.elapsed() >= LIMIT && !times.large.is_empty() {
                break;
            }
            let Some(mut page) = reads.runs().first().copied() else { continue };
            page.extent.len = PAGE as u64;
            times.small.push(seconds(|| store.read(&page, &mut into[..PAGE]))?);
            let bytes = reads.runs().iter().map(|run| run.extent.len).sum();
            let seconds = seconds(|| read_all(store, &reads, into))?;
            times.took(bytes, seconds);
        }
        Ok(times)
    }

    /// Counts a read of the load itself.
    pub(super) fn took(&mut self, bytes: u64, seconds: f64) {
        self.large.push((bytes, seconds));
    }

    /// Bytes per second, and the seconds of a read that do not depend on its size. Both are medians, because a read
    /// that waited for another process does not describe the disk.
    pub(super) fn rates(&self) -> (f64, f64) {
        let small = median(self.small.iter().copied()).unwrap_or(0.0);
        let page = PAGE as u64;
        let per_byte = self.large.iter().map(|&(bytes, seconds)| {
            let beyond = seconds - small;
            // If a layer takes no longer than a page, the two parts cannot be separated.
            if bytes > page && beyond > 0.0 { beyond / (bytes - page) as f64 } else { seconds / bytes.max(1) as f64 }
        });
        let per_byte = median(per_byte).unwrap_or(1e-9).max(1e-15);
        (1.0 / per_byte, (small - page as f64 * per_byte).max(0.0))
    }
}

/// Reads at places throughout the layers, each into a buffer of `buffer` bytes.
fn samples<'t>(table: &'t LayerTable, layers: &Range<usize>, buffer: usize) -> impl Iterator<Item = Reads> + 't {
    let (first, count) = (layers.start, layers.len());
    let places: std::collections::BTreeSet<usize> =
        (0..READS).filter(|_| count > 0).map(|read| first + (2 * read + 1) * count / (2 * READS)).collect();
    let begin = |layer: usize| {
        let mut left = LARGEST;
        let pieces = table.layers.get(layer).into_iter().flatten().map_while(|piece| {
            let len = piece.extent.len.min(left);
            left -= len;
            (len > 0).then_some(Extent { len, ..piece.extent })
        });
        Reads::of(&pieces.collect::<Vec<_>>())
    };
    places.into_iter().map(begin).filter(move |reads| reads.buffer() <= buffer)
}

/// Touches every page of a buffer. The system allocates untouched pages during a read, which would count as the disk's
/// time.
pub(super) fn touch(buffer: &mut HostBuffer) {
    buffer.chunks_mut(PAGE).for_each(|page| page[0] = 0);
}

/// The seconds that a call took, or its error.
pub(super) fn seconds(read: impl FnOnce() -> Result<(), WeightStoreError>) -> Result<f64, WeightStoreError> {
    let begun = Instant::now();
    read()?;
    Ok(begun.elapsed().as_secs_f64())
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Mutex;

    use model_boss_weights::gguf::HeaderWriter;
    use model_boss_weights::store::{Run, WeightStoreChoice, open};

    use super::*;
    use crate::convert::synthetic::Synthetic;
    use crate::files::ModelFiles;

    /// The times of a disk with these seconds for each read and each byte.
    fn times(latency: f64, per_byte: f64, sizes: &[u64]) -> ReadTimes {
        let takes = |bytes: u64| latency + per_byte * bytes as f64;
        ReadTimes {
            large: sizes.iter().map(|bytes| (*bytes, takes(*bytes))).collect(),
            small: sizes.iter().map(|_| takes(PAGE as u64)).collect(),
        }
    }

    #[test]
    fn two_sizes_tell_how_a_read_begins_from_how_long_it_is() {
        for (latency, per_byte) in [(0.0, 1e-9), (1e-4, 5e-10), (8e-3, 5e-9)] {
            let (rate, begins) = times(latency, per_byte, &[30 << 20, 20 << 20, 25 << 20]).rates();
            assert!((rate * per_byte - 1.0).abs() < 1e-6, "{rate}");
            assert!((begins - latency).abs() < 1e-9, "{begins} beside {latency}");
        }
    }

    #[test]
    fn reads_that_had_to_wait_change_nothing() {
        let mut times = times(1e-4, 1e-9, &[32 << 20; 8]);
        let expected = times.rates();
        for at in [0, 3, 7] {
            times.large[at].1 *= 20.0;
            times.small[at] *= 500.0;
        }
        assert_eq!(times.rates(), expected);
    }

    #[test]
    fn numbers_that_say_nothing_are_no_rates() {
        let odd = ReadTimes { large: vec![(100, 0.0), (8192, 1e-6)], small: vec![1e-3] };
        for times in [ReadTimes::default(), odd] {
            let (rate, latency) = times.rates();
            assert!(rate.is_finite() && rate > 0.0 && latency >= 0.0, "{times:?}");
        }
    }

    /// A store that records the ranges that are read.
    struct Noting(std::sync::Arc<dyn WeightStore>, Mutex<Vec<(u64, u64)>>);

    impl WeightStore for Noting {
        fn read(&self, run: &Run, into: &mut [u8]) -> Result<(), WeightStoreError> {
            self.1.lock().unwrap().push((run.extent.offset, run.extent.len));
            self.0.read(run, into)
        }

        fn describe(&self) -> String {
            self.0.describe()
        }
    }

    #[test]
    fn reads_are_few_and_stand_all_over_the_layers() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("small.gguf");
        let shape = Synthetic::of("qwen3-small").unwrap();
        shape.write(3, HeaderWriter::new(), File::create(&model).unwrap()).unwrap();
        let (files, spec) = ModelFiles::open(&model).unwrap();
        let table = LayerTable::places(&spec, &files).unwrap();
        let store = Noting(open(&table.paths, WeightStoreChoice::Auto).unwrap(), Mutex::default());
        let layers = 0..spec.layers.len();
        let mut buffer = HostBuffer::new(table.reads(&[0]).0.buffer() * 2).unwrap();
        let times = ReadTimes::of(&table, &layers, &store, &mut buffer).unwrap();
        assert!((1..=READS).contains(&times.large.len()) && times.small.len() == times.large.len(), "{times:?}");
        let read: u64 = store.1.lock().unwrap().iter().map(|(_, len)| len).sum();
        let all = table.reads(&layers.collect::<Vec<_>>()).0.buffer() as u64;
        assert!(read < all / 2, "{read} of {all}");
        let (small, none) = (table.reads(&[0]).0.buffer() / 2, 0..0);
        let mut short = HostBuffer::new(small).unwrap();
        assert!(ReadTimes::of(&table, &none, &store, &mut short).unwrap().large.is_empty());
        assert!(ReadTimes::of(&table, &(0..spec.layers.len()), &store, &mut short).unwrap().large.is_empty());
    }
}
