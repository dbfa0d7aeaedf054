//! Streaming on the CPU from a model's files: measures the disk, plans, reads resident layers, and starts reading the
//! streamed ones.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use model_boss_engine::DecoderError;
use model_boss_engine::residency::adapt::Adapter;
use model_boss_engine::residency::plan::{MemoryNeeds, Rates, ResidencyPlan, StreamPlan, plan};
use model_boss_engine::residency::{Monitor, ResidencySummary, StreamDevice, Streamer};
use model_boss_kernels::{MatrixKernel, MatrixLayout};
use model_boss_weights::store::{HostBuffer, MemoryStore, Reads, WeightStore, WeightStoreChoice, read_all};

use super::device::CpuDevice;
use crate::error::ModelError;
use crate::layers::layer::Layer;
use crate::matrix::Matrix;
use crate::plan::part::DevicePart;
use crate::read::reader::WeightReader;
use crate::streamed::arranged::{arrange, matrices};
use crate::streamed::block::StreamedBlock;
use crate::streamed::experts;
use crate::streamed::index;
use crate::streamed::layers::{BlockWeights, StreamedLayers};
use crate::streamed::measure::{ReadTimes, seconds, touch};
use crate::streamed::planned::{everything, kept, report};
use crate::streamed::request::{StreamRequest, StreamedPart, needs_beside_layers};
use crate::streamed::store_source::StoreSource;
use crate::streamed::table::{LayerTable, MatrixPiece};

/// Opens the layers of one device, some of which are streamed. The weights before and after them have been read.
pub(crate) fn open(asked: &StreamRequest<'_>, reader: &mut WeightReader<'_>) -> Result<StreamedPart, ModelError> {
    let StreamRequest { spec, part, options, .. } = *asked;
    let DevicePart { place, layers, .. } = part;
    let mut table = LayerTable::read(spec, reader.files(), reader, layers.clone())?;
    let index = index::apply(&mut table, MatrixLayout::arrangement);
    let store = reader.files().store(&table.paths, options.store)?;
    let described = |store: &dyn WeightStore| match &index {
        Some(index) => format!("{}, {index}", store.describe()),
        None => store.describe(),
    };
    if let Some(planned) = experts::plan(asked, reader, &table) {
        let described = described(store.as_ref());
        return experts::open(asked, reader, table, store, described, &planned);
    }

    let needs = MemoryNeeds {
        layers: layers.clone().map(|layer| table.reads(&[layer]).0.buffer() as u64).collect(),
        ..needs_beside_layers(asked, reader)
    };
    let rates = measure(&table, layers, store.as_ref())?;
    let mut planned = match plan(&needs, place.budget, &options.residency, Some(&rates)).map_err(ModelError::Refused)? {
        ResidencyPlan::Stream(planned) => planned,
        // The caller expected streamed layers; a plan without any is valid too.
        ResidencyPlan::Resident => everything(&needs),
    };
    // From here on, the numbers of layers are those in the model, not in this part.
    planned.blocks.iter_mut().flatten().for_each(|layer| *layer += layers.start);
    let layer_bytes: Vec<u64> = vec![0; layers.start].into_iter().chain(needs.layers.iter().copied()).collect();

    let mut resident: Vec<Option<Arc<Layer>>> = vec![None; spec.layers.len()];
    for layer in layers.clone().filter(|layer| !planned.streams(*layer)) {
        let (block, bytes) = read_layer(&table, layer, store.as_ref())?;
        let mut parts = BlockWeights { small: &table.small, block: &block };
        resident[layer] = Some(Arc::new(Layer::read(&mut parts, spec, layer)?));
        reader.took(bytes);
    }
    let blocks: Vec<_> = planned.blocks.iter().map(|layers| table.reads(layers)).collect();
    let buffer = blocks.iter().map(|(reads, _)| reads.buffer()).max().unwrap_or(0);
    let reads: Vec<Reads> = blocks.iter().map(|(reads, _)| reads.clone()).collect();
    let (store, held): (Arc<dyn WeightStore>, u64) = match options.store {
        WeightStoreChoice::Memory => {
            let taken = needs.ends + needs.kv + needs.workspace + planned.layer_bytes();
            let room = place.budget.saturating_sub(taken);
            let store = MemoryStore::holding(store, &reads, &kept(&planned), room)?;
            let held = store.bytes();
            (Arc::new(store), held)
        }
        WeightStoreChoice::Auto | WeightStoreChoice::Direct | WeightStoreChoice::Map => (store, 0),
    };
    let named = described(store.as_ref());
    let (slots, device) = (planned.slots, CpuDevice::new(blocks));
    let about = ResidencySummary {
        rearranged_bytes: rearranged(&table, &planned),
        ..report(&planned, &rates, layers.len(), named, device.capabilities())
    };
    let monitor = Arc::new(Monitor::new(about));
    let adapter = Adapter::new(&planned, &layer_bytes, options.residency.window);
    let (source, ring) = (StoreSource { store, reads }, (slots, buffer));
    let streamer =
        Streamer::start(spec.layers.len(), planned.blocks, slots, ring, source, device, Arc::clone(&monitor))?;
    let streamer = streamer.adapting(adapter);
    let stretch = StreamedLayers { spec: spec.clone(), small: table.small, resident, streamer, monitor, clock: None };
    Ok(StreamedPart { stretch: Box::new(stretch), slot_bytes: (slots * buffer) as u64 + held, host_bytes: 0 })
}

/// Bytes of a step that have to be rearranged.
fn rearranged(table: &LayerTable, planned: &StreamPlan) -> u64 {
    let kept = planned.kept(planned.look_ahead);
    let comes = |block: &usize| !kept.iter().any(|kept| kept.0 == *block);
    let blocks = (0..planned.blocks.len()).filter(comes).flat_map(|block| &planned.blocks[block]);
    let pieces = blocks.flat_map(|layer| &table.layers[*layer]);
    pieces.filter(|piece| piece.moves()).map(|piece| piece.extent.len).sum()
}

/// Reads a resident layer; returns it with its bytes.
fn read_layer(table: &LayerTable, layer: usize, store: &dyn WeightStore) -> Result<(StreamedBlock, u64), ModelError> {
    let (reads, pieces) = table.reads(&[layer]);
    let mut buffer = host_buffer(reads.buffer())?;
    read_all(store, &reads, &mut buffer)?;
    let bad = |what| ModelError::Layer { layer, what };
    arrange(&reads, &pieces, &mut buffer, true).map_err(bad)?;
    let matrices = matrices(&reads, &pieces, &Bytes::from_owner(buffer)).map_err(bad)?;
    Ok((StreamedBlock::new(matrices), pieces.iter().map(|piece| piece.extent.len).sum()))
}

fn host_buffer(bytes: usize) -> Result<HostBuffer, ModelError> {
    HostBuffer::new(bytes).map_err(|error| ModelError::Device(DecoderError::OutOfMemory(error.to_string())))
}

/// Measures the rates of the store and of this machine's products. The latter are measured with two layers, of which
/// the first warms up the caches.
fn measure(table: &LayerTable, layers: &Range<usize>, store: &dyn WeightStore) -> Result<Rates, ModelError> {
    let mut rates = Rates { read: 1e9, place: f64::INFINITY, latency: 1e-4, compute: 10e9 };
    let samples = [layers.start, layers.start + layers.len() / 2].map(|layer| table.reads(&[layer]));
    let size = samples.iter().map(|(reads, _)| reads.buffer()).max().unwrap_or(0);
    let mut loan = host_buffer(size)?;
    let mut times = ReadTimes::of(table, layers, store, &mut loan)?;
    for (reads, pieces) in &samples {
        let bytes: u64 = pieces.iter().map(|piece| piece.extent.len).sum();
        let per_second = |begun: Instant| bytes as f64 / begun.elapsed().as_secs_f64().max(1e-9);
        touch(&mut loan);
        times.took(reads.buffer() as u64, seconds(|| read_all(store, reads, &mut loan))?);
        let begun = Instant::now();
        arrange(reads, pieces, &mut loan, false).map_err(|what| ModelError::Layer { layer: 0, what })?;
        let moves = pieces.iter().any(MatrixPiece::moves);
        rates.place = if moves { per_second(begun) } else { f64::INFINITY };
        let shared = Bytes::from_owner(loan);
        let matrices = matrices(reads, pieces, &shared).map_err(|what| ModelError::Layer { layer: 0, what })?;
        let kernels: Vec<&Arc<dyn MatrixKernel>> = matrices
            .values()
            .filter_map(|matrix| match matrix {
                Matrix::Stored(kernel) => Some(kernel),
                Matrix::Tensor(_) | Matrix::Blocks(_) => None,
            })
            .collect();
        let depths: Vec<usize> = pieces.iter().map(|piece| piece.layout.shape[1]).collect();
        let row = vec![0.5_f32; depths.into_iter().max().unwrap_or(0)];
        for _ in 0..2 {
            let begun = Instant::now();
            rayon::scope(|_| {
                for (kernel, depth) in kernels.iter().map(|kernel| (kernel, kernel.depth())) {
                    kernel.product(&row[..depth.min(row.len())], 1);
                }
            });
            rates.compute = per_second(begun);
        }
        loan = host_buffer(size)?;
    }
    (rates.read, rates.latency) = times.rates();
    Ok(rates)
}
