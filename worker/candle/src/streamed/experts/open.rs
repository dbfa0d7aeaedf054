//! Opening layers whose experts are pages: plans their memory, reads everything else, and starts the pager.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use model_boss_engine::DecoderError;
use model_boss_engine::residency::experts::plan::room;
use model_boss_engine::residency::experts::{ExpertPager, LayerPages};
use model_boss_engine::residency::plan::MemoryNeeds;
use model_boss_engine::residency::{Capabilities, ExpertSummary, Monitor, ResidencySummary};
use model_boss_weights::store::{Extent, HostBuffer, Reads, WeightStore, read_all};

use super::pages::{StoredPages, is_of_expert, pages_of};
use super::source::{PagedExperts, PagedLayers, Routings};
use crate::error::ModelError;
use crate::layers::layer::Layer;
use crate::read::reader::WeightReader;
use crate::streamed::arranged::{arrange, matrices};
use crate::streamed::block::StreamedBlock;
use crate::streamed::layers::BlockWeights;
use crate::streamed::measure::ReadTimes;
use crate::streamed::request::{StreamRequest, StreamedPart, needs_beside_layers};
use crate::streamed::table::{LayerTable, MatrixPiece};

/// Pages that are read at the same time. A disk delivers its full rate to no fewer readers of such sizes.
const READERS: usize = 4;
/// Bytes of the buffer for measuring the store.
const SAMPLE: usize = 40 << 20;

/// The memory of a model's parts with its experts in pages.
pub(in crate::streamed) struct ExpertPlan {
    /// The pages of all layers by number; none where a layer has no experts.
    pages: Vec<LayerPages>,
    /// Bytes that pages may take.
    room: u64,
}

/// Plans the experts of some layers as pages. `None` if layers have no experts, if a window or a block asks for whole
/// layers, or if not even the experts of one token fit.
pub(in crate::streamed) fn plan(
    asked: &StreamRequest<'_>,
    reader: &WeightReader<'_>,
    table: &LayerTable,
) -> Option<ExpertPlan> {
    let StreamRequest { spec, part, options, .. } = *asked;
    if options.residency.window.is_some() || options.residency.block.is_some() {
        return None;
    }
    let pages = pages_of(spec, table, &part.layers);
    if pages.iter().all(|pages| pages.experts == 0) {
        return None;
    }
    let dense = part.layers.clone().map(|layer| dense(table, layer).0.buffer() as u64).collect();
    let mut needs = MemoryNeeds { layers: dense, ..needs_beside_layers(asked, reader) };
    needs.workspace += early_results(spec.hidden, &pages);
    let room = room(&needs, &pages, part.place.budget)?;
    Some(ExpertPlan { pages, room })
}

/// Bytes of results that wait for an earlier expert's: at most those of all experts of a step's rows.
fn early_results(hidden: usize, pages: &[LayerPages]) -> u64 {
    let used = pages.iter().map(|pages| pages.used).max().unwrap_or(0);
    (crate::plan::needs::ROWS).saturating_mul((used * hidden * size_of::<f32>()) as u64)
}

/// Reads everything but the experts of some layers, and starts the pager.
pub(in crate::streamed) fn open(
    asked: &StreamRequest<'_>,
    reader: &mut WeightReader<'_>,
    table: LayerTable,
    store: Arc<dyn WeightStore>,
    described: String,
    planned: &ExpertPlan,
) -> Result<StreamedPart, ModelError> {
    let StreamRequest { spec, part, .. } = *asked;
    let ExpertPlan { pages, room } = planned;
    let (rate, _) = ReadTimes::of(&table, &part.layers, store.as_ref(), &mut host_buffer(SAMPLE)?)?.rates();
    let small = Arc::new(table.small.clone());
    let mut blocks = Vec::new();
    for layer in part.layers.clone() {
        let (block, bytes) = read_dense(&table, layer, store.as_ref())?;
        reader.took(bytes);
        blocks.push((layer, block, bytes));
    }
    let moved = |(layer, pages): (usize, &LayerPages)| {
        let pieces = table.layers[layer].iter().filter(|piece| is_of_expert(piece) && piece.moves());
        let all: u64 = pieces.map(|piece| piece.extent.len).sum();
        all * pages.used as u64 / pages.experts.max(1) as u64
    };
    let streamed_layers = pages.iter().filter(|pages| pages.experts > 0).count();
    let of_pages = |bytes: &dyn Fn(&LayerPages) -> u64| pages.iter().map(bytes).sum::<u64>();
    let monitor = Arc::new(Monitor::new(ResidencySummary {
        resident_layers: part.layers.len() - streamed_layers,
        streamed_layers,
        resident_bytes: blocks.iter().map(|(_, _, bytes)| bytes).sum(),
        streamed_bytes: of_pages(&|pages| pages.bytes * pages.used as u64),
        rearranged_bytes: pages.iter().enumerate().filter(|(_, pages)| pages.experts > 0).map(moved).sum(),
        store: described,
        store_bytes_per_second: rate,
        capabilities: Capabilities { host_memory: true, ..Capabilities::default() },
        experts: Some(ExpertSummary {
            pages: pages.iter().map(|pages| pages.experts).sum(),
            bytes: of_pages(&|pages| pages.bytes * pages.experts as u64),
            memory: *room,
        }),
        ..ResidencySummary::default()
    }));
    let source = StoredPages::new(spec, &table, pages, Arc::clone(&small), store);
    let pager = Arc::new(ExpertPager::start(source, pages, *room, READERS, Arc::clone(&monitor))?);
    let routings: Routings = (0..spec.layers.len()).map(|_| OnceLock::new()).collect();
    let mut layers = Vec::new();
    for (layer, block, _) in &blocks {
        let experts = PagedExperts { pager: Arc::clone(&pager), layer: *layer, routings: Arc::clone(&routings) };
        let mut of = BlockWeights { small: &small, block };
        layers.push(Layer::read_with(&mut of, spec, *layer, Some(Arc::new(experts)))?);
    }
    let stretch = PagedLayers { first: part.layers.start, layers, pager, monitor };
    Ok(StreamedPart { stretch: Box::new(stretch), slot_bytes: *room, host_bytes: 0 })
}

/// The reads of a layer without its experts.
fn dense(table: &LayerTable, layer: usize) -> (Reads, Vec<MatrixPiece>) {
    let pieces: Vec<MatrixPiece> = table.layers[layer].iter().filter(|piece| !is_of_expert(piece)).cloned().collect();
    let extents: Vec<Extent> = pieces.iter().map(|piece| piece.extent).collect();
    (Reads::of(&extents), pieces)
}

fn read_dense(table: &LayerTable, layer: usize, store: &dyn WeightStore) -> Result<(StreamedBlock, u64), ModelError> {
    let (reads, pieces) = dense(table, layer);
    let mut buffer = host_buffer(reads.buffer())?;
    read_all(store, &reads, &mut buffer)?;
    let bad = |what| ModelError::Layer { layer, what };
    arrange(&reads, &pieces, &mut buffer, true).map_err(bad)?;
    let matrices = matrices(&reads, &pieces, &Bytes::from_owner(buffer)).map_err(bad)?;
    Ok((StreamedBlock::new(matrices), reads.buffer() as u64))
}

fn host_buffer(bytes: usize) -> Result<HostBuffer, ModelError> {
    HostBuffer::new(bytes).map_err(|error| ModelError::Device(DecoderError::OutOfMemory(error.to_string())))
}
