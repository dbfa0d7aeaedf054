//! Blocks of streamed layers read from a store, and the classes of a store's errors.

use std::sync::Arc;

use model_boss_engine::residency::schedule::LayerBlockId;
use model_boss_engine::residency::{BlockSource, StreamFault};
use model_boss_weights::store::{Reads, WeightStore, WeightStoreError, read_all};

/// A source of blocks that reads them from a store.
pub(crate) struct StoreSource {
    pub(crate) store: Arc<dyn WeightStore>,
    /// The reads of each block.
    pub(crate) reads: Vec<Reads>,
}

impl BlockSource for StoreSource {
    fn read(&mut self, block: LayerBlockId, into: &mut [u8]) -> Result<u64, StreamFault> {
        let Some(reads) = self.reads.get(block.0) else {
            return Err(StreamFault::Step(format!("no block {}", block.0)));
        };
        read_all(self.store.as_ref(), reads, into).map_err(|error| fault(&error))?;
        Ok(reads.runs().iter().map(|run| run.extent.len).sum())
    }
}

/// The fault for a store's error. A changed file is fatal, because it will not change back.
pub(crate) fn fault(error: &WeightStoreError) -> StreamFault {
    match error {
        WeightStoreError::Changed { .. } => StreamFault::Fatal(error.to_string()),
        WeightStoreError::Read { .. }
        | WeightStoreError::NotDirect { .. }
        | WeightStoreError::Memory { .. }
        | WeightStoreError::NoFile { .. }
        | WeightStoreError::Quantised(_)
        | WeightStoreError::Made(_)
        | WeightStoreError::Panicked
        | WeightStoreError::TooShort { .. } => StreamFault::Step(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use model_boss_weights::store::{Extent, Run};

    use super::*;

    /// A store whose reads fail on command, as those of a faulty disk.
    #[derive(Default)]
    struct Failing(AtomicBool);

    impl WeightStore for Failing {
        fn read(&self, run: &Run, into: &mut [u8]) -> Result<(), WeightStoreError> {
            if self.0.swap(false, Ordering::SeqCst) {
                let source = std::io::Error::from_raw_os_error(5);
                return Err(WeightStoreError::Read { path: "large.gguf".into(), offset: run.extent.offset, source });
            }
            into.fill(7);
            Ok(())
        }

        fn describe(&self) -> String {
            "failing".to_owned()
        }
    }

    #[test]
    fn a_read_error_fails_one_step_with_the_file_and_the_place() {
        let store = Arc::new(Failing::default());
        let reads = vec![Reads::of(&[Extent { file: 0, offset: 40_960, len: 100 }])];
        let mut source = StoreSource { store: Arc::clone(&store) as Arc<dyn WeightStore>, reads };
        let mut buffer = [0; 4_096];
        store.0.store(true, Ordering::SeqCst);
        match source.read(LayerBlockId(0), &mut buffer) {
            Err(StreamFault::Step(what)) => {
                assert!(what.contains("large.gguf") && what.contains("byte 40960"), "{what}")
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(source.read(LayerBlockId(0), &mut buffer), Ok(4_096));
        let changed = WeightStoreError::Changed { path: "large.gguf".into() };
        assert!(matches!(fault(&changed), StreamFault::Fatal(what) if what.contains("large.gguf")));
    }
}
