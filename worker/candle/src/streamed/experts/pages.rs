//! Reading expert pages from a store: the places of an expert's matrices, and the expert that they make.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use model_boss_engine::residency::StreamFault;
use model_boss_engine::residency::experts::{ExpertPage, LayerPages, PageRead, PageSource};
use model_boss_weights::store::{Extent, Reads, WeightStore};

use super::pool::PagePool;
use crate::error::ModelError;
use crate::layers::experts::expert_mlp;
use crate::layers::mlp::Mlp;
use crate::spec::{DecoderSpec, ExpertsSpec, FeedForward, part_names};
use crate::streamed::arranged::{arrange, matrices};
use crate::streamed::block::StreamedBlock;
use crate::streamed::layers::BlockWeights;
use crate::streamed::store_source::fault;
use crate::streamed::table::{LayerTable, MatrixPiece, SmallTensors};

/// The pages of all layers in a store.
pub(super) struct StoredPages {
    spec: DecoderSpec,
    small: Arc<SmallTensors>,
    layers: Vec<Vec<StoredPage>>,
    /// Bytes of a buffer for any page of a layer.
    buffers: Vec<usize>,
    store: Arc<dyn WeightStore>,
    pool: Arc<PagePool>,
}

/// The places of an expert's matrices.
struct StoredPage {
    reads: Reads,
    pieces: Vec<MatrixPiece>,
    /// Whether its numbers were checked. Files do not change while they are read, so one check is enough.
    checked: AtomicBool,
}

/// The experts of a layer; `None` where it has none.
pub(super) fn experts_of(spec: &DecoderSpec, layer: usize) -> Option<&ExpertsSpec> {
    match &spec.layers.get(layer)?.feed_forward {
        FeedForward::Experts(experts) => Some(experts),
        FeedForward::Gated(_) | FeedForward::Plain(_) | FeedForward::None => None,
    }
}

/// Whether a matrix belongs to an expert that not every row uses.
pub(super) fn is_of_expert(piece: &MatrixPiece) -> bool {
    piece.name.contains(".mlp.experts.")
}

/// The pages of the model's layers by number, none outside of `layers`.
pub(super) fn pages_of(spec: &DecoderSpec, table: &LayerTable, layers: &Range<usize>) -> Vec<LayerPages> {
    let of_layer = |layer: usize| match experts_of(spec, layer).filter(|_| layers.contains(&layer)) {
        None => LayerPages::default(),
        Some(experts) => {
            let buffers = (0..experts.count).map(|expert| page(table, layer, expert).reads.buffer());
            LayerPages { experts: experts.count, used: experts.used, bytes: buffers.max().unwrap_or(0) as u64 }
        }
    };
    (0..spec.layers.len()).map(of_layer).collect()
}

fn page(table: &LayerTable, layer: usize, expert: usize) -> StoredPage {
    let path = part_names::layer(layer, &format!("mlp.experts.{expert}."));
    let pieces = table.layers[layer].iter().filter(|piece| piece.name.starts_with(&path));
    let pieces: Vec<MatrixPiece> = pieces.cloned().collect();
    let extents: Vec<Extent> = pieces.iter().map(|piece| piece.extent).collect();
    StoredPage { reads: Reads::of(&extents), pieces, checked: AtomicBool::new(false) }
}

impl StoredPages {
    pub(super) fn new(
        spec: &DecoderSpec,
        table: &LayerTable,
        pages: &[LayerPages],
        small: Arc<SmallTensors>,
        store: Arc<dyn WeightStore>,
    ) -> Self {
        let of_layer = |(layer, pages): (usize, &LayerPages)| {
            (0..pages.experts).map(|expert| page(table, layer, expert)).collect()
        };
        Self {
            spec: spec.clone(),
            small,
            layers: pages.iter().enumerate().map(of_layer).collect(),
            buffers: pages.iter().map(|pages| pages.bytes as usize).collect(),
            store,
            pool: Arc::default(),
        }
    }

    fn stored(&self, page: ExpertPage) -> Option<&StoredPage> {
        self.layers.get(page.layer)?.get(page.expert)
    }

    fn expert(&self, page: ExpertPage, block: &StreamedBlock) -> Result<Mlp, ModelError> {
        let missing = || ModelError::Layer { layer: page.layer, what: "has no experts".to_owned() };
        let experts = experts_of(&self.spec, page.layer).ok_or_else(missing)?;
        expert_mlp(&mut BlockWeights { small: &self.small, block }, experts, page.layer, page.expert)
    }
}

impl PageSource for StoredPages {
    type Page = Mlp;

    fn read(&self, page: ExpertPage) -> Result<PageRead<Mlp>, StreamFault> {
        let Some(StoredPage { reads, pieces, checked }) = self.stored(page) else {
            return Err(StreamFault::Step(format!("no expert {} of layer {}", page.expert, page.layer)));
        };
        let buffer = PagePool::take(&self.pool, self.buffers[page.layer]);
        let mut buffer = buffer.map_err(|error| StreamFault::Step(format!("no memory for an expert: {error}")))?;
        for run in reads.runs() {
            let into = buffer.as_mut().get_mut(run.at..run.at + run.extent.len as usize).unwrap_or_default();
            self.store.read(run, into).map_err(|error| fault(&error))?;
        }
        let read = Instant::now();
        // One that fails the check is checked again.
        arrange(reads, pieces, buffer.as_mut(), !checked.load(Ordering::Relaxed)).map_err(StreamFault::Step)?;
        checked.store(true, Ordering::Relaxed);
        let matrices = matrices(reads, pieces, &Bytes::from_owner(buffer)).map_err(StreamFault::Step)?;
        let expert = self.expert(page, &StreamedBlock::new(matrices));
        Ok(PageRead {
            page: expert.map_err(|error| StreamFault::Step(error.to_string()))?,
            bytes: reads.runs().iter().map(|run| run.extent.len).sum(),
            arranging: read.elapsed(),
        })
    }

    fn place(&self, page: ExpertPage) -> u64 {
        let first = self.stored(page).and_then(|stored| stored.reads.runs().first());
        first.map_or(0, |run| run.extent.offset)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use model_boss_engine::residency::experts::{ChosenExpert, ExpertPager, PageServeError};
    use model_boss_engine::residency::{Monitor, ResidencySummary};
    use model_boss_weights::gguf::HeaderWriter;
    use model_boss_weights::store::{Run, WeightStoreChoice, WeightStoreError, open};

    use super::*;
    use crate::convert::synthetic::Synthetic;
    use crate::files::ModelFiles;

    /// A store whose reads fail on command, as those of a faulty disk.
    struct Failing(Arc<dyn WeightStore>, Arc<AtomicBool>);

    impl WeightStore for Failing {
        fn read(&self, run: &Run, into: &mut [u8]) -> Result<(), WeightStoreError> {
            if self.1.load(Ordering::SeqCst) {
                let source = std::io::Error::from_raw_os_error(5);
                return Err(WeightStoreError::Read { path: "large.gguf".into(), offset: run.extent.offset, source });
            }
            self.0.read(run, into)
        }

        fn describe(&self) -> String {
            "failing".to_owned()
        }
    }

    #[test]
    fn a_read_error_fails_a_layer_with_the_file_and_the_place_and_the_next_try_reads() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("large.gguf");
        let shape = Synthetic::of("qwen3moe-tiny").unwrap();
        shape.write(3, HeaderWriter::new(), File::create(&model).unwrap()).unwrap();
        let (files, spec) = ModelFiles::open(&model).unwrap();
        let table = LayerTable::places(&spec, &files).unwrap();
        let pages = pages_of(&spec, &table, &(0..spec.layers.len()));
        assert!(pages.iter().all(|pages| (pages.experts, pages.used) == (16, 4)));
        let fails = Arc::new(AtomicBool::new(true));
        let store = Failing(open(&table.paths, WeightStoreChoice::Auto).unwrap(), Arc::clone(&fails));
        let source = StoredPages::new(&spec, &table, &pages, Arc::default(), Arc::new(store));
        let monitor = Arc::new(Monitor::new(ResidencySummary::default()));
        let pager = ExpertPager::start(source, &pages, 4 * pages[0].bytes, 2, monitor).unwrap();
        let compute = || {
            let asked = pager.ask(1, &[ChosenExpert { expert: 5, rows: 1 }]);
            pager.serve(asked, &|| false, |_, _| Ok::<_, ()>(()))
        };
        match compute() {
            Err(PageServeError::Fault(StreamFault::Step(what))) => {
                assert!(what.contains("large.gguf") && what.contains("at byte"), "{what}")
            }
            other => panic!("{other:?}"),
        }
        fails.store(false, Ordering::SeqCst);
        compute().unwrap();
    }
}
