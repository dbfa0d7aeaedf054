//! From a model's files to a decoder whose layers come and go: measures the disk, plans, reads what stays, and starts the
//! rest on its way.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use model_boss_engine::DecoderError;
use model_boss_engine::residency::adapt::Adapter;
use model_boss_engine::residency::plan::{Mode, Needs, Plan as ResidencyPlan, Rates, StreamPlan, plan};
use model_boss_engine::residency::{Capabilities, Device, Monitor, Residency, Streamer};
use model_boss_weights::store::{self, HostBuffer, MemoryStore, Reads, StoreChoice, WeightStore, read_all};

use super::cpu::{Block, CpuDevice, StoreSource, arrange, matrices};
use super::measure::{ReadTimes, seconds, touch};
use super::table::{LayerTable, Piece};
use super::{Pieces, Streamed, index};
use crate::layer::Layer;
use crate::layout::MatrixLayout;
use crate::load::{LoadOptions, ModelError, context};
use crate::matrix::{Matrix, MatrixKernel};
use crate::placing::Part;
use crate::reader::Reader;
use crate::spec::DecoderSpec;
use crate::stage::Stretch;
use crate::{cuda, kv};

/// The context that room is kept for when nobody says: a model that could read a book is rarely given one.
const USUAL_CONTEXT: usize = 4096;
/// Rows that a step of a long prompt works on at once, and values of the model's width that each of them needs.
const ROWS: u64 = 512;
const ROW_VALUES: u64 = 16;
/// What threads, buffers and the allocator take beside that.
const PROCESS: u64 = 32 << 20;

/// Whether layers of a part have to come and go. What fits with one sequence stays: more sequences are a matter of free
/// memory.
pub(crate) fn wanted(spec: &DecoderSpec, part: &Part, options: &LoadOptions) -> bool {
    let target = &part.place.target;
    let one = (kv::bytes_of_layer(spec, target, kept_tokens(spec, options)) * part.layers.len()) as u64;
    match options.residency.mode {
        Mode::Stream => true,
        Mode::Resident => false,
        // Elsewhere there is nothing to stream with, and what does not fit is refused by its size.
        Mode::Auto => {
            let needs = part.weights.saturating_add(one).saturating_add(workspace(spec));
            (target.device.is_cpu() || target.device.is_cuda()) && needs > part.place.budget
        }
    }
}

/// Tokens of a sequence that room is kept for.
pub(crate) fn kept_tokens(spec: &DecoderSpec, options: &LoadOptions) -> usize {
    let context = context(spec, options.context_length);
    options.context_length.map_or(context.min(USUAL_CONTEXT), |_| context)
}

/// Bytes of a step's own values.
pub(crate) fn workspace(spec: &DecoderSpec) -> u64 {
    let values = (ROWS * ROW_VALUES).saturating_mul(spec.hidden as u64).saturating_add(2 * spec.vocab as u64);
    values.saturating_mul(size_of::<f32>() as u64).saturating_add(PROCESS)
}

/// What is to be streamed.
pub(crate) struct Asked<'a> {
    pub(crate) spec: &'a DecoderSpec,
    pub(crate) part: &'a Part,
    pub(crate) options: &'a LoadOptions,
    /// What the reader had read before it came to this device.
    pub(crate) before: u64,
    /// Bytes of host memory that streaming to another device may take; buffers alone when absent.
    #[cfg_attr(not(any(test, feature = "cuda")), allow(dead_code, reason = "this build streams to no other device"))]
    pub(crate) host_memory: Option<u64>,
}

/// Layers that come and go.
pub(crate) struct Opened {
    pub(crate) stretch: Box<dyn Stretch>,
    /// Bytes of the slots that layers come through, and of what is held beside them in the device's memory.
    pub(crate) slot_bytes: u64,
    /// Bytes of host memory, where that is not the device's own.
    pub(crate) host_bytes: u64,
}

/// The layers of one device, of which some come and go. What of the ends is on the device has been read.
pub(crate) fn open(asked: &Asked<'_>, reader: &mut Reader<'_>) -> Result<Opened, ModelError> {
    let Asked { spec, part, options, .. } = *asked;
    let Part { place, layers, .. } = part;
    if !place.target.device.is_cpu() {
        return cuda::stream(asked, reader);
    }
    let mut table = LayerTable::read(spec, reader.files(), reader, layers.clone())?;
    let index = index::apply(&mut table, MatrixLayout::arrangement);
    let store = store::open(&table.paths, options.store)?;

    let needs = Needs {
        layers: layers.clone().map(|layer| table.reads(&[layer]).0.buffer() as u64).collect(),
        ..needs_beside_layers(asked, reader)
    };
    let rates = measure(&table, layers, store.as_ref())?;
    let mut planned = match plan(&needs, place.budget, &options.residency, Some(&rates)).map_err(ModelError::Refused)? {
        ResidencyPlan::Stream(planned) => planned,
        // Whoever came here thought otherwise; nothing to stream is a plan too.
        ResidencyPlan::Resident => everything(&needs),
    };
    // From here on layers go by their numbers in the model.
    planned.blocks.iter_mut().flatten().for_each(|layer| *layer += layers.start);
    let layer_bytes: Vec<u64> = vec![0; layers.start].into_iter().chain(needs.layers.iter().copied()).collect();

    let mut resident: Vec<Option<Arc<Layer>>> = vec![None; spec.layers];
    for layer in layers.clone().filter(|layer| !planned.streams(*layer)) {
        let (block, bytes) = read_layer(&table, layer, store.as_ref())?;
        let mut parts = Pieces { small: &table.small, block: &block };
        resident[layer] = Some(Arc::new(Layer::read(&mut parts, spec, layer)?));
        reader.took(bytes);
    }
    let blocks: Vec<_> = planned.blocks.iter().map(|layers| table.reads(layers)).collect();
    let buffer = blocks.iter().map(|(reads, _)| reads.buffer()).max().unwrap_or(0);
    let reads: Vec<Reads> = blocks.iter().map(|(reads, _)| reads.clone()).collect();
    let (store, held): (Arc<dyn WeightStore>, u64) = match options.store {
        StoreChoice::Memory => {
            let taken = needs.ends + needs.kv + needs.workspace + planned.layer_bytes();
            let room = place.budget.saturating_sub(taken);
            let store = MemoryStore::holding(store, &reads, &kept(&planned), room)?;
            let held = store.bytes();
            (Arc::new(store), held)
        }
        StoreChoice::Auto | StoreChoice::Direct | StoreChoice::Map => (store, 0),
    };
    let named = index.map_or(store.describe(), |index| format!("{}, {index}", store.describe()));
    let (slots, device) = (planned.slots, CpuDevice::new(blocks));
    let about = Residency {
        rearranged_bytes: rearranged(&table, &planned),
        ..report(&planned, &rates, layers.len(), named, device.capabilities())
    };
    let monitor = Arc::new(Monitor::new(about));
    let adapter = Adapter::new(&planned, &layer_bytes, options.residency.window);
    let (source, ring) = (StoreSource { store, reads }, (slots, buffer));
    let streamer = Streamer::start(spec.layers, planned.blocks, slots, ring, source, device, Arc::clone(&monitor))?;
    let streamer = streamer.adapting(adapter);
    let stretch = Streamed { spec: spec.clone(), small: table.small, resident, streamer, monitor, clock: None };
    Ok(Opened { stretch: Box::new(stretch), slot_bytes: (slots * buffer) as u64 + held, host_bytes: 0 })
}

/// What a device has to hold beside its layers, once what always stays has been read.
pub(super) fn needs_beside_layers(asked: &Asked<'_>, reader: &Reader<'_>) -> Needs {
    let Asked { spec, part, options, before, .. } = *asked;
    let kv = kv::bytes_of_layer(spec, &part.place.target, kept_tokens(spec, options));
    let sequences = options.max_concurrent.unwrap_or(1).max(1) as usize;
    Needs {
        layers: Vec::new(),
        ends: reader.bytes() - before,
        kv: kv.saturating_mul(sequences).saturating_mul(part.layers.len()) as u64,
        workspace: workspace(spec),
    }
}

pub(super) fn everything(needs: &Needs) -> StreamPlan {
    let resident_bytes = needs.layers.iter().sum();
    let (blocks, slots, look_ahead, slot_bytes) = (Vec::new(), 0, 0, 0);
    StreamPlan { blocks, slots, look_ahead, slot_bytes, resident_bytes, streamed_bytes: 0, step_seconds: None }
}

/// Blocks that stay in slots as it was planned: what is read of them is read once.
pub(super) fn kept(planned: &StreamPlan) -> Vec<usize> {
    planned.kept(planned.look_ahead).into_iter().map(|block| block.0).collect()
}

pub(super) fn report(
    planned: &StreamPlan,
    rates: &Rates,
    layers: usize,
    store: String,
    capabilities: Capabilities,
) -> Residency {
    let streamed_layers = planned.blocks.iter().map(Vec::len).sum();
    Residency {
        resident_layers: layers - streamed_layers,
        streamed_layers,
        resident_bytes: planned.resident_bytes,
        streamed_bytes: planned.streamed_bytes,
        rearranged_bytes: 0,
        blocks: planned.blocks.len(),
        slots: planned.slots,
        look_ahead: planned.look_ahead,
        slot_bytes: planned.slot_bytes,
        store,
        store_bytes_per_second: rates.read,
        predicted_step_seconds: planned.step_seconds.unwrap_or(0.0),
        capabilities,
    }
}

/// Bytes of a step that have to be put into another order.
fn rearranged(table: &LayerTable, planned: &StreamPlan) -> u64 {
    let kept = planned.kept(planned.look_ahead);
    let comes = |block: &usize| !kept.iter().any(|kept| kept.0 == *block);
    let blocks = (0..planned.blocks.len()).filter(comes).flat_map(|block| &planned.blocks[block]);
    let pieces = blocks.flat_map(|layer| &table.layers[*layer]);
    pieces.filter(|piece| piece.moves()).map(|piece| piece.extent.len).sum()
}

/// A layer that stays, and its bytes.
fn read_layer(table: &LayerTable, layer: usize, store: &dyn WeightStore) -> Result<(Block, u64), ModelError> {
    let (reads, pieces) = table.reads(&[layer]);
    let mut buffer = host_buffer(reads.buffer())?;
    read_all(store, &reads, &mut buffer)?;
    let bad = |what| ModelError::Layer { layer, what };
    arrange(&reads, &pieces, &mut buffer, true).map_err(bad)?;
    let matrices = matrices(&reads, &pieces, &Bytes::from_owner(buffer)).map_err(bad)?;
    Ok((Block::new(matrices), pieces.iter().map(|piece| piece.extent.len).sum()))
}

fn host_buffer(bytes: usize) -> Result<HostBuffer, ModelError> {
    HostBuffer::new(bytes).map_err(|error| ModelError::Device(DecoderError::OutOfMemory(error.to_string())))
}

/// How fast the store reads and this machine computes; the latter from two layers, of which the first warms everything up.
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
        let moves = pieces.iter().any(Piece::moves);
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
