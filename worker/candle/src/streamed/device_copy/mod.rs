//! Streaming to a device with memory of its own: the engine's copies into slots, with matrices in them. The module is
//! independent of vendors: each provides a [`CopyDriver`] whose memory is a matrix.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use candle_core::Tensor;
use model_boss_engine::DecoderError;
use model_boss_engine::residency::adapt::Adapter;
use model_boss_engine::residency::device_copy::StepClock;
use model_boss_engine::residency::device_copy::{
    BlockCheck, BlockCopy, CopyDevice, CopyDriver, CopyPiece, Queue, SlotNeeds,
};
use model_boss_engine::residency::plan::{MemoryNeeds, Rates, ResidencyPlan, StreamPlan, cost, plan};
use model_boss_engine::residency::predict::step_seconds;
use model_boss_engine::residency::schedule::LayerBlockId;
use model_boss_engine::residency::{Capabilities, Loan, Monitor, StreamDevice, StreamFault, Streamer, TimeSpan};
use model_boss_kernels::{MatrixLayout, ROWS};
use model_boss_protocol::ByteCount;
use model_boss_weights::store::{HostBuffer, Reads, WeightStore, evenly_within, read_all};

use crate::device;
use crate::error::ModelError;
use crate::layers::layer::Layer;
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;
use crate::streamed::block::{MemoryHold, StreamedBlock};
use crate::streamed::index;
use crate::streamed::layers::{StepTimer, StreamedLayers};
use crate::streamed::measure::{ReadTimes, seconds};
use crate::streamed::planned::{everything, kept, report};
use crate::streamed::request::{StreamRequest, StreamedPart, needs_beside_layers};
use crate::streamed::store_source::StoreSource;
use crate::streamed::table::{LayerTable, MatrixPiece};

/// Buffers that reads alternate between: one is filled while the other is copied from.
const BUFFERS: usize = 2;

/// Device memory of one matrix. Products read it after each copy to it.
pub(crate) trait MatrixMemory {
    /// The matrix in this memory.
    fn matrix(&self) -> Matrix;
}

/// Opens the layers of one device with memory of its own, some of which are streamed. The weights before and after them
/// have been read.
pub(crate) fn open<D>(
    asked: &StreamRequest<'_>,
    reader: &mut WeightReader<'_>,
    driver: &Arc<D>,
) -> Result<StreamedPart, ModelError>
where
    D: CopyDriver<Class = MatrixLayout>,
    D::Memory: MatrixMemory,
{
    let StreamRequest { spec, part, options, .. } = *asked;
    let (target, layers) = (&part.place.target, &part.layers);
    let mut table = LayerTable::read(spec, reader.files(), reader, layers.clone())?;
    // Kernels of these devices read matrices in the order of the model's files.
    let index = index::apply(&mut table, |_| ROWS);
    fits(&table, layers, target)?;
    let store = reader.files().store(&table.paths, options.store)?;
    let bytes_of = |layout: &MatrixLayout| target.matrix_bytes(layout);
    let of_layer = |layer: usize| table.layers[layer].iter().map(|piece| &piece.layout);
    let converted = layers.clone().flat_map(of_layer).map(|layout| target.converted_bytes(layout)).max().unwrap_or(0);
    let beside = needs_beside_layers(asked, reader);
    let needs = MemoryNeeds {
        layers: layers.clone().map(|layer| of_layer(layer).map(bytes_of).sum()).collect(),
        workspace: beside.workspace.saturating_add(converted),
        ..beside
    };
    let rates = measure(&table, layers, store.as_ref(), driver, target)?;
    let mut planned = fitting(&table, layers.start, &needs, asked, &rates, bytes_of)?;
    // From here on, the numbers of layers are those in the model, not in this part.
    planned.blocks.iter_mut().flatten().for_each(|layer| *layer += layers.start);

    let mut resident: Vec<Option<Arc<Layer>>> = vec![None; spec.layers.len()];
    for layer in layers.clone().filter(|layer| !planned.streams(*layer)) {
        resident[layer] = Some(Arc::new(Layer::read(reader, spec, layer)?));
    }
    let blocks: Vec<(Reads, Vec<MatrixPiece>)> = planned.blocks.iter().map(|layers| table.reads(layers)).collect();
    let buffer = blocks.iter().map(|(reads, _)| reads.buffer()).max().unwrap_or(0);
    let host = HostShare::of(asked.host_memory, &blocks, &kept(&planned), buffer)?;
    let mut held = HashMap::new();
    for block in &host.held {
        let (reads, _) = &blocks[block.0];
        let mut bytes = driver.host_buffer(reads.buffer()).map_err(load_fault)?;
        read_all(store.as_ref(), reads, &mut bytes)?;
        held.insert(*block, bytes);
    }
    let (slots, slot_bytes) = (planned.slots, planned.slots as u64 * planned.slot_bytes);
    let from = index.map_or(store.describe(), |index| format!("{}, {index}", store.describe()));
    let store_name = match (host.held.len(), blocks.len()) {
        (0, _) => from,
        (held, all) if held == all => "host memory".to_owned(),
        (held, all) => format!("{from}, {held} of {all} blocks in host memory"),
    };
    if planned.step_seconds.is_some() {
        let local = StreamPlan { blocks: shifted(&planned.blocks, layers.start), ..planned.clone() };
        let mut cost = cost(&needs, &local, &rates);
        // The cost counts the blocks that are copied in a step, in their order.
        let kept = local.kept(local.look_ahead);
        let comes = (0..local.blocks.len()).map(LayerBlockId).filter(|block| !kept.contains(block));
        for (of_block, block) in cost.blocks.iter_mut().zip(comes) {
            if host.held.contains(&block) {
                of_block.read = 0.0;
            }
        }
        planned.step_seconds = Some(step_seconds(&cost, local.look_ahead + 1));
    }
    let capabilities = driver.capabilities();
    let monitor = Arc::new(Monitor::new(report(&planned, &rates, layers.len(), store_name, capabilities)));
    let (reads, names) = (blocks.iter().map(|(reads, _)| reads.clone()).collect(), blocks.len());
    let source = StoreSource { store: Arc::clone(&store), reads };
    let device = MatrixDevice::new(driver, blocks, slots, held).map_err(load_fault)?;
    let ring = (host.buffers, if host.held.len() == names { 0 } else { buffer });
    let layer_bytes: Vec<u64> = vec![0; layers.start].into_iter().chain(needs.layers.iter().copied()).collect();
    let adapter = Adapter::new(&planned, &layer_bytes, options.residency.window);
    let streamer =
        Streamer::start(spec.layers.len(), planned.blocks, slots, ring, source, device, Arc::clone(&monitor))?;
    let streamer = streamer.adapting(adapter);
    let clock: Box<dyn StepTimer> = Box::new(StepClock::new(Arc::clone(driver)));
    let stretch =
        StreamedLayers { spec: spec.clone(), small: table.small, resident, streamer, monitor, clock: Some(clock) };
    Ok(StreamedPart { stretch: Box::new(stretch), slot_bytes, host_bytes: host.bytes })
}

fn shifted(blocks: &[Vec<usize>], by: usize) -> Vec<Vec<usize>> {
    blocks.iter().map(|layers| layers.iter().map(|layer| layer - by).collect()).collect()
}

/// Refuses matrices of types without a product on the device.
fn fits(table: &LayerTable, layers: &Range<usize>, target: &WeightTarget) -> Result<(), ModelError> {
    let pieces = table.layers[layers.clone()].iter().flatten();
    match pieces.into_iter().find(|piece| !target.computes_stored(piece.layout.kind)) {
        None => Ok(()),
        Some(MatrixPiece { name, layout, .. }) => {
            let what = format!("is stored as {}, which cannot be streamed to this device", layout.kind);
            Err(ModelError::Tensor { name: name.clone(), what })
        }
    }
}

/// A plan whose slots fit, with their real bytes. A plan assumes slots of its largest block. A real slot has room for
/// each kind of matrix as often as any block has it, which is more if layers differ in type.
fn fitting(
    table: &LayerTable,
    first: usize,
    needs: &MemoryNeeds,
    asked: &StreamRequest<'_>,
    rates: &Rates,
    bytes_of: impl Fn(&MatrixLayout) -> u64,
) -> Result<StreamPlan, ModelError> {
    let budget = asked.part.place.budget;
    let mut less = 0;
    loop {
        let within = budget.saturating_sub(less);
        let planned = match plan(needs, within, &asked.options.residency, Some(rates)).map_err(ModelError::Refused)? {
            ResidencyPlan::Stream(planned) => planned,
            ResidencyPlan::Resident => return Ok(everything(needs)),
        };
        let classes = |layers: &Vec<usize>| -> Vec<MatrixLayout> {
            layers.iter().flat_map(|layer| table.layers[first + layer].iter()).map(|piece| piece.layout).collect()
        };
        let slot = SlotNeeds::of(planned.blocks.iter().map(classes)).bytes(&bytes_of);
        let takes = (needs.ends + needs.kv + needs.workspace + planned.resident_bytes)
            .saturating_add(slot.saturating_mul(planned.slots as u64));
        if takes <= budget {
            return Ok(StreamPlan { slot_bytes: slot, ..planned });
        }
        // The next plan has fewer bytes by the excess of this one. A plan that cannot be made smaller is refused with
        // its numbers.
        less += (takes - budget).max(1);
    }
}

/// The uses of host memory.
struct HostShare {
    buffers: usize,
    held: Vec<LayerBlockId>,
    bytes: u64,
}

impl HostShare {
    /// Chooses the blocks to hold: the buffers have precedence, then as many blocks as fit are held. Blocks are chosen
    /// evenly among the streamed ones, so that the disk has time for the others while they are copied. Without a limit
    /// only buffers are held.
    fn of(
        limit: Option<u64>,
        blocks: &[(Reads, Vec<MatrixPiece>)],
        stay: &[usize],
        buffer: usize,
    ) -> Result<Self, ModelError> {
        let (buffer, limit) = (buffer as u64, limit.unwrap_or(BUFFERS as u64 * buffer as u64));
        let all: u64 = blocks.iter().map(|(reads, _)| reads.buffer() as u64).sum();
        if all <= limit {
            let held = (0..blocks.len()).map(LayerBlockId).collect();
            // The ring needs a buffer even if no block is read into it, so it gets one of a page.
            return Ok(Self { buffers: 1, held, bytes: all });
        }
        let buffers = (limit / buffer.max(1)).min(BUFFERS as u64);
        if buffers == 0 {
            let what = format!(
                "reading a block takes {} of host memory, {} are leased; a smaller `block` needs less",
                ByteCount(buffer),
                ByteCount(limit)
            );
            return Err(ModelError::Device(DecoderError::OutOfMemory(what)));
        }
        let bytes: Vec<u64> = blocks.iter().map(|(reads, _)| reads.buffer() as u64).collect();
        let held = evenly_within(&bytes, stay, limit - buffers * buffer);
        let held_bytes: u64 = held.iter().map(|block| bytes[*block]).sum();
        let held = held.into_iter().map(LayerBlockId).collect();
        Ok(Self { buffers: buffers as usize, bytes: buffers * buffer + held_bytes, held })
    }
}

/// Measures the rates of the store, of copies to the device and of computing. The latter two are measured with two
/// layers, of which the first is a warm-up.
fn measure<D>(
    table: &LayerTable,
    layers: &Range<usize>,
    store: &dyn WeightStore,
    driver: &Arc<D>,
    target: &WeightTarget,
) -> Result<Rates, ModelError>
where
    D: CopyDriver<Class = MatrixLayout>,
    D::Memory: MatrixMemory,
{
    let mut rates = Rates { read: 1e9, place: 10e9, latency: 1e-4, compute: 500e9 };
    let mark = || driver.event(true).map_err(load_fault);
    let (begin, end) = (mark()?, mark()?);
    let samples = [layers.start, layers.start + layers.len() / 2].map(|layer| table.reads(&[layer]));
    let size = samples.iter().map(|(reads, _)| reads.buffer()).max().unwrap_or(0);
    let mut buffer = driver.host_buffer(size).map_err(load_fault)?;
    let mut times = ReadTimes::of(table, layers, store, &mut buffer)?;
    for (reads, pieces) in &samples {
        let bytes: u64 = pieces.iter().map(|piece| piece.extent.len).sum();
        let per_second = |seconds: f64| bytes as f64 / seconds.max(1e-9);
        times.took(reads.buffer() as u64, seconds(|| read_all(store, reads, &mut buffer))?);
        let memory = pieces.iter().map(|piece| driver.allocate(&piece.layout)).collect::<Result<Vec<_>, _>>();
        let memory = memory.map_err(load_fault)?;
        let copying = || -> Result<f64, StreamFault> {
            // The memory exists when the compute queue has reached this point.
            driver.record(&begin, Queue::Compute)?;
            driver.finish(&begin)?;
            driver.record(&begin, Queue::Copy)?;
            let mut places = reads.places().iter().zip(&memory);
            let asked = places
                .try_for_each(|(place, memory)| driver.copy(buffer.get(place.clone()).unwrap_or_default(), memory));
            // Neither side of a copy may be freed before the copy is done, even if another copy could not be queued.
            driver.record(&end, Queue::Copy)?;
            let seconds = driver.seconds(&begin, &end)?;
            asked.map(|()| seconds)
        };
        rates.place = per_second(copying().map_err(load_fault)?);
        let set = |event: &D::Event| driver.record(event, Queue::Compute).map_err(load_fault);
        for _ in 0..2 {
            set(&begin)?;
            for (piece, memory) in pieces.iter().zip(&memory) {
                let row = Tensor::ones((1, piece.layout.shape[1]), target.dtype, &target.device);
                let product = row.and_then(|row| memory.matrix().product(&row));
                product.map_err(|error| not_computed(piece, &error))?;
            }
            set(&end)?;
            rates.compute = per_second(driver.seconds(&begin, &end).map_err(load_fault)?);
        }
    }
    (rates.read, rates.latency) = times.rates();
    Ok(rates)
}

/// The error for a failed product. It blames the matrix, unless the device reports a fault of its own.
fn not_computed(piece: &MatrixPiece, error: &candle_core::Error) -> ModelError {
    match device::failure(error) {
        DecoderError::Step(what) => {
            ModelError::Tensor { name: piece.name.clone(), what: format!("cannot be computed with: {what}") }
        }
        error => ModelError::Device(error),
    }
}

/// The error for a fault during a load. A fault that is not fatal is a lack of memory.
fn load_fault(fault: StreamFault) -> ModelError {
    ModelError::Device(match fault {
        StreamFault::Step(what) => DecoderError::OutOfMemory(what),
        StreamFault::Fatal(what) => DecoderError::Fatal(what),
        StreamFault::Interrupted => DecoderError::Interrupted,
    })
}

/// The engine's device, with the names of the matrices in each block.
struct MatrixDevice<D: CopyDriver> {
    copied: CopyDevice<D>,
    /// Names of matrices by block, in the order of the block's pieces.
    names: Vec<Vec<String>>,
}

impl<D: CopyDriver<Class = MatrixLayout>> MatrixDevice<D> {
    fn new(
        driver: &Arc<D>,
        blocks: Vec<(Reads, Vec<MatrixPiece>)>,
        slots: usize,
        held: HashMap<LayerBlockId, HostBuffer>,
    ) -> Result<Self, StreamFault> {
        let of_block = |(reads, pieces): &(Reads, Vec<MatrixPiece>)| -> Vec<CopyPiece<MatrixLayout>> {
            let places = reads.places().iter().cloned();
            places.zip(pieces).map(|(at, piece)| CopyPiece { class: piece.layout, at }).collect()
        };
        let copied = blocks.iter().map(of_block).collect();
        let names = blocks.iter().map(|(_, pieces)| pieces.iter().map(|piece| piece.name.clone()).collect()).collect();
        let check: BlockCheck = Box::new(move |block, bytes| {
            let Some((reads, pieces)) = blocks.get(block.0) else { return Ok(()) };
            reads.places().iter().zip(pieces).try_for_each(|(place, piece)| {
                let bytes = bytes.get(place.clone()).unwrap_or_default();
                piece.layout.check(bytes).map_err(|what| format!("tensor '{}' {what}", piece.name))
            })
        });
        Ok(Self { copied: CopyDevice::new(Arc::clone(driver), copied, slots, held, check)?, names })
    }
}

impl<D> StreamDevice for MatrixDevice<D>
where
    D: CopyDriver<Class = MatrixLayout>,
    D::Memory: MatrixMemory,
{
    type Block = StreamedBlock;

    fn capabilities(&self) -> Capabilities {
        self.copied.capabilities()
    }

    fn host_buffer(&mut self, bytes: usize) -> Result<HostBuffer, StreamFault> {
        self.copied.host_buffer(bytes)
    }

    fn holds(&self, block: LayerBlockId) -> Option<u64> {
        self.copied.holds(block)
    }

    fn begin(&mut self, block: LayerBlockId) -> bool {
        self.copied.begin(block)
    }

    fn place(&mut self, block: LayerBlockId, from: Loan) -> Result<StreamedBlock, StreamFault> {
        let copied = self.copied.place(block, from)?;
        let names = self.names.get(block.0).into_iter().flatten().cloned();
        let matrices = names.zip(copied.pieces()).map(|(name, memory)| (name, memory.matrix())).collect();
        Ok(StreamedBlock::leased(matrices, Box::new(copied)))
    }

    fn worked(&self) -> Option<Duration> {
        self.copied.worked()
    }
}

impl<D: CopyDriver> MemoryHold for BlockCopy<D> {
    fn begin_use(&self) -> Result<(), StreamFault> {
        BlockCopy::begin_use(self)
    }
}

impl<D: CopyDriver> StepTimer for StepClock<D> {
    fn begin_step(&mut self) {
        Self::begin_step(self);
    }

    fn layer_begins(&mut self, layer: usize) {
        Self::layer_begins(self, layer);
    }

    fn layer_ends(&mut self) {
        Self::layer_ends(self);
    }

    fn spans(&mut self) -> Option<Vec<(usize, TimeSpan)>> {
        Self::spans(self)
    }
}

#[cfg(test)]
mod tests;
