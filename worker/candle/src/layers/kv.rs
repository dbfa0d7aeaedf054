//! Keys and values in blocks. They are kept outside the layers, so that layers stay immutable and serve any number of
//! sequences. Which block belongs to which sequence is the engine's matter; attention is not known here.
//!
//! In the host's memory a block is one piece with the pages of all layers there. On other devices a layer has one
//! tensor for all blocks, which grows by a share of what it has.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use half::f16;
use model_boss_engine::{BLOCK_TOKENS, BlockId, DecoderError, DecoderStep};
use model_boss_kernels::{HostKv, KvValues, PageShape};
use model_boss_weights::store::HostBuffer;

use crate::device;
use crate::device::rows::{self, StepTables, TableSequence};
use crate::layers::kv_room::room_after;
use crate::layers::kv_shape::{KvHome, LayerKvShape};
use crate::matrix::kv_element::dtype_of_kv;
use crate::matrix::target::WeightTarget;
use crate::spec::{DecoderSpec, LayerSpec};

// The engine's blocks are the pages that attention on the CPU reads.
const _: () = assert!(BLOCK_TOKENS == model_boss_kernels::PAGE);

/// One layer's keys and values of one sequence.
pub(crate) enum LayerKv<'a> {
    /// On the CPU.
    Host(HostKv<'a>),
    /// On other devices.
    Device(DeviceKv<'a>),
}

/// All blocks of a decoder.
pub(crate) struct KvStore {
    pub(super) layers: Vec<LayerStore>,
    /// The layer whose keys and values each layer uses. One that uses another's writes the same into the same places.
    lenders: Vec<usize>,
    /// Bytes of a block in the host's memory.
    pub(super) host_bytes: usize,
    /// The blocks there, by their numbers; none where nothing was written yet.
    pub(super) host: Vec<Option<HostBuffer>>,
    /// Blocks that hold something.
    pub(super) held: BTreeSet<BlockId>,
    /// The most blocks there will ever be.
    most: usize,
    /// How often tensors of a device were made or dropped: so long their memory stays where it is.
    moves: u64,
}

/// Where a layer's keys and values lie.
pub(super) enum LayerStore {
    /// The layer has none.
    None,
    /// At this place in each block in the host's memory.
    Host { offset: usize, shape: PageShape },
    /// In tensors of their own.
    Device(DeviceStore),
}

/// One layer's keys and values of all blocks as tensors.
pub(super) struct DeviceStore {
    pub(super) home: KvHome,
    device: Device,
    pub(super) dtype: DType,
    pub(super) shape: LayerKvShape,
    /// `[kv_heads, blocks * BLOCK_TOKENS, width]` each; none before the first block. Values that are in the keys have a
    /// width of 0.
    pub(super) tensors: Option<(Tensor, Tensor)>,
}

/// One layer's keys and values of one sequence as tensors.
pub(crate) struct DeviceKv<'a> {
    keys: &'a Tensor,
    values: &'a Tensor,
    blocks: &'a [BlockId],
    /// The places of all tokens, where the blocks are not one behind the other.
    places: Option<&'a Tensor>,
    /// The places of all sequences' tokens, where kernels use them.
    tables: Option<&'a StepTables>,
}

/// The keys and values of a step's sequences, taken out of the store for the time of the step: each sequence owns the
/// blocks that it writes.
pub(crate) struct StepKv<'s> {
    store: &'s mut KvStore,
    sequences: Vec<SequenceKv>,
    /// As in [`DeviceKv`], on the device of the present stage.
    tables: Option<StepTables>,
}

struct SequenceKv {
    blocks: Vec<BlockId>,
    /// Blocks before the first that is written.
    read: usize,
    /// Tokens before and behind the step.
    past: usize,
    tokens: usize,
    /// Whether the step has tokens of an image.
    sees: bool,
    /// The blocks that are written, in the host's memory.
    written: Vec<HostBuffer>,
    /// As in [`DeviceKv`], on the device of the present stage.
    places: Option<Tensor>,
}

impl KvStore {
    /// No blocks yet, and never more than `most`; each layer's will be where `targets` say, one for each.
    pub(crate) fn new<'t>(
        spec: &DecoderSpec,
        targets: impl Iterator<Item = (KvHome, &'t WeightTarget)>,
        most: usize,
    ) -> Self {
        let mut host_bytes = 0;
        let store = |(layer, (home, target)): (&LayerSpec, (KvHome, &WeightTarget))| {
            let Some(shape) = LayerKvShape::of(&layer.mixer) else { return LayerStore::None };
            if home != KvHome::Pages {
                return LayerStore::Device(DeviceStore {
                    home,
                    device: target.device.clone(),
                    // A type that tensors cannot have is refused before (`kv_element`).
                    dtype: dtype_of_kv(target.cached).unwrap_or(target.dtype),
                    shape,
                    tensors: None,
                });
            }
            let shape = shape.page(target.cached);
            let offset = host_bytes;
            host_bytes += shape.bytes();
            LayerStore::Host { offset, shape }
        };
        let layers = spec.layers.iter().zip(targets).map(store).collect();
        let lenders = (0..spec.layers.len()).map(|layer| spec.lender(layer).unwrap_or(layer)).collect();
        Self { layers, lenders, host_bytes, host: Vec::new(), held: BTreeSet::new(), most, moves: 0 }
    }

    /// Takes the blocks of a step's sequences out, with memory for all that they write.
    pub(crate) fn lend(&mut self, batch: &[DecoderStep<'_>]) -> std::result::Result<StepKv<'_>, DecoderError> {
        let mut writers = HashMap::new();
        for (index, step) in batch.iter().enumerate() {
            let (read, end) = written(step);
            if step.blocks.len() < end || step.blocks[..read].iter().any(|block| !self.held.contains(block)) {
                return Err(DecoderError::Step("a sequence lacks blocks for its tokens".to_owned()));
            }
            for block in &step.blocks[read..end] {
                if writers.insert(*block, index).is_some() {
                    return Err(DecoderError::Step(format!("two sequences write block {}", block.0)));
                }
            }
            // Its first block holds the end of its past.
            if !step.past.is_multiple_of(BLOCK_TOKENS) && !self.held.contains(&step.blocks[read]) {
                return Err(DecoderError::Step(format!("block {} holds nothing", step.blocks[read].0)));
            }
        }
        for (index, step) in batch.iter().enumerate() {
            let foreign = |block: &BlockId| writers.get(block).is_some_and(|writer| *writer != index);
            if let Some(block) = step.blocks[..written(step).0].iter().find(|block| foreign(block)) {
                return Err(DecoderError::Step(format!(
                    "block {} is written while another sequence reads it",
                    block.0
                )));
            }
        }
        self.reserve(writers.keys().copied()).map_err(|error| device::failure(&error))?;
        let mut sequences = Vec::with_capacity(batch.len());
        for step in batch {
            let (read, end) = written(step);
            let blocks = step.blocks[..end].to_vec();
            let own = blocks[read..].iter().filter_map(|block| self.host.get_mut(block.0 as usize)?.take()).collect();
            let tokens = step.past + step.tokens.len();
            let sees = step.images.iter().any(|image| image.range.start < tokens && image.range.end > step.past);
            sequences.push(SequenceKv { blocks, read, past: step.past, tokens, sees, written: own, places: None });
        }
        Ok(StepKv { store: self, sequences, tables: None })
    }

    /// Copies all that a block holds to another.
    pub(crate) fn copy(&mut self, from: BlockId, to: BlockId) -> Result<()> {
        if !self.held.contains(&from) {
            candle_core::bail!("block {} holds nothing", from.0);
        }
        self.reserve([to].into_iter())?;
        for layer in &self.layers {
            if let LayerStore::Device(DeviceStore { tensors: Some((keys, values)), .. }) = layer {
                for tensor in [keys, values].into_iter().filter(|tensor| tensor.elem_count() > 0) {
                    // Of a single head the block is contiguous as it is, and a tensor cannot be copied into itself.
                    let block = tensor.narrow(1, first_token(from), BLOCK_TOKENS)?.force_contiguous()?;
                    tensor.slice_set(&block, 1, first_token(to))?;
                }
            }
        }
        if self.host_bytes > 0 {
            let [from, to] = [from, to].map(|block| block.0 as usize);
            // Taken out for the time of the copy, so that both can be borrowed.
            let Some(mut copied) = self.host.get_mut(to).and_then(Option::take) else {
                candle_core::bail!("block {to} has no memory");
            };
            if let Some(held) = self.host.get(from).and_then(Option::as_ref) {
                copied.copy_from_slice(held);
            }
            self.host[to] = Some(copied);
        }
        Ok(())
    }

    /// Gives the memory of blocks back: in the host's memory at once, on other devices with the last one.
    pub(crate) fn free(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            self.held.remove(block);
            if let Some(memory) = self.host.get_mut(block.0 as usize) {
                *memory = None;
            }
        }
        if self.held.is_empty() {
            for layer in &mut self.layers {
                if let LayerStore::Device(store) = layer {
                    store.tensors = None;
                    self.moves += 1;
                }
            }
        }
    }

    /// Tokens that layers of one device have memory for.
    pub(crate) fn room(&self, layers: Range<usize>) -> usize {
        match self.device_store(layers) {
            Some(store) => store.room() * BLOCK_TOKENS,
            None => self.held.len() * BLOCK_TOKENS,
        }
    }

    /// The first of some layers whose keys and values are tensors.
    fn device_store(&self, layers: Range<usize>) -> Option<&DeviceStore> {
        self.layers.get(layers)?.iter().find_map(|layer| match layer {
            LayerStore::Device(store) => Some(store),
            LayerStore::Host { .. } | LayerStore::None => None,
        })
    }

    /// Makes room for these blocks. Keeps what is there, and on an error it is as it was.
    pub(super) fn reserve(&mut self, blocks: impl Iterator<Item = BlockId>) -> Result<()> {
        let new: Vec<BlockId> = blocks.filter(|block| !self.held.contains(block)).collect();
        let Some(last) = new.iter().max().map(|last| last.0 as usize) else { return Ok(()) };
        let mut moved: Vec<Device> = Vec::new();
        for layer in &mut self.layers {
            if let LayerStore::Device(store) = layer
                && store.room() <= last
            {
                self.moves += 1;
                store.reserve(room_after(store.room(), last + 1, self.most))?;
                if !moved.iter().any(|device| device.same_device(&store.device)) {
                    moved.push(store.device.clone());
                }
            }
        }
        // The smaller tensors fit nowhere any more.
        moved.iter().for_each(device::trim);
        if self.host_bytes > 0 {
            if self.host.len() <= last {
                self.host.resize_with(last + 1, || None);
            }
            let memory = new.iter().map(|_| HostBuffer::new(self.host_bytes)).collect::<std::io::Result<Vec<_>>>()?;
            for (block, memory) in new.iter().zip(memory) {
                self.host[block.0 as usize] = Some(memory);
            }
        }
        self.held.extend(new);
        Ok(())
    }
}

impl DeviceStore {
    /// Blocks there is room for.
    fn room(&self) -> usize {
        let tokens = self.tensors.as_ref().and_then(|(keys, _)| keys.dim(1).ok()).unwrap_or(0);
        tokens / BLOCK_TOKENS
    }

    /// Makes room for so many blocks.
    fn reserve(&mut self, blocks: usize) -> Result<()> {
        let room = blocks * BLOCK_TOKENS;
        let LayerKvShape { kv_heads, head_dim, values } = self.shape;
        let grown = |old: Option<&Tensor>, width: usize| -> Result<Tensor> {
            let new = Tensor::zeros((kv_heads, room, width), self.dtype, &self.device)?;
            if width == 0 {
                return Ok(new);
            }
            if let Some(old) = old {
                new.slice_set(old, 1, 0)?;
            }
            Ok(new)
        };
        let old = self.tensors.as_ref();
        let keys = grown(old.map(|(keys, _)| keys), head_dim)?;
        self.tensors = Some((keys, grown(old.map(|(_, values)| values), values.apart())?));
        Ok(())
    }
}

impl StepKv<'_> {
    /// The layers that follow, on one device.
    pub(crate) fn enter(&mut self, layers: Range<usize>) -> Result<()> {
        let store = self.store.device_store(layers);
        let device = store.map(|store| &store.device);
        let kernels = store.filter(|store| store.home == KvHome::Kernels);
        let tables = |store: &DeviceStore| StepTables::new(self.in_tables(), BLOCK_TOKENS, &store.device);
        self.tables = kernels.map(tables).transpose()?;
        for sequence in &mut self.sequences {
            // Kernels read the blocks of a few rows where they lie.
            let short = rows::is_short(sequence.tokens - sequence.past) && !sequence.sees;
            let gathers = kernels.is_none() || !short;
            let scattered = device.filter(|_| gathers && first_run(&sequence.blocks) < sequence.blocks.len());
            sequence.places = scattered.map(|device| sequence.places_on(device)).transpose()?;
        }
        Ok(())
    }

    /// The sequences for tables of all their blocks.
    pub(crate) fn in_tables(&self) -> Vec<TableSequence> {
        let of = |sequence: &SequenceKv| TableSequence {
            blocks: sequence.blocks.iter().map(|block| block.0).collect(),
            past: sequence.past,
            new: sequence.tokens - sequence.past,
        };
        self.sequences.iter().map(of).collect()
    }

    /// The layers that follow, all on one device, with tables that are there already. Of sequences with few rows.
    pub(crate) fn enter_with(&mut self, tables: StepTables) {
        self.tables = Some(tables);
    }

    /// Changes whenever the memory of keys and values does.
    pub(crate) fn moves(&self) -> u64 {
        self.store.moves
    }

    /// One layer's part of every sequence.
    pub(crate) fn layer(&mut self, index: usize) -> Vec<LayerKv<'_>> {
        let KvStore { layers, lenders, host, .. } = &*self.store;
        let mut parts = Vec::with_capacity(self.sequences.len());
        if let Some(layer) = lenders.get(index).and_then(|lender| layers.get(*lender)) {
            for sequence in &mut self.sequences {
                parts.extend(sequence.layer(layer, host, self.tables.as_ref()));
            }
        }
        parts
    }
}

impl Drop for StepKv<'_> {
    fn drop(&mut self) {
        for sequence in self.sequences.drain(..) {
            for (block, memory) in sequence.blocks[sequence.read..].iter().zip(sequence.written) {
                self.store.host[block.0 as usize] = Some(memory);
            }
        }
    }
}

impl SequenceKv {
    fn layer<'a>(
        &'a mut self,
        layer: &'a LayerStore,
        host: &'a [Option<HostBuffer>],
        tables: Option<&'a StepTables>,
    ) -> Option<LayerKv<'a>> {
        match layer {
            LayerStore::Host { offset, shape } => {
                let page = *offset..*offset + shape.bytes();
                let read = self.blocks[..self.read].iter();
                let read = read.filter_map(|block| host.get(block.0 as usize)?.as_deref()?.get(page.clone()));
                let written = self.written.iter_mut().filter_map(|memory| memory.get_mut(page.clone()));
                Some(LayerKv::Host(HostKv::new(*shape, read.collect(), written.collect())))
            }
            LayerStore::Device(store) => {
                let (keys, values) = store.tensors.as_ref()?;
                let (blocks, places) = (self.blocks.as_slice(), self.places.as_ref());
                Some(LayerKv::Device(DeviceKv { keys, values, blocks, places, tables }))
            }
            LayerStore::None => None,
        }
    }

    /// The places of all its tokens, `[tokens]`.
    fn places_on(&self, device: &Device) -> Result<Tensor> {
        let of_block = |block: &BlockId| {
            let first = first_token(*block) as u32;
            first..first + BLOCK_TOKENS as u32
        };
        let places: Vec<u32> = self.blocks.iter().flat_map(of_block).take(self.tokens).collect();
        Tensor::new(places, device)
    }
}

impl<'a> DeviceKv<'a> {
    /// The caches of all sequences and the places in them, where kernels use them.
    pub(crate) fn for_kernels(&self) -> Option<((&'a Tensor, &'a Tensor), &'a StepTables)> {
        Some(((self.keys, self.values), self.tables?))
    }
}

impl DeviceKv<'_> {
    /// Writes `[kv_heads, tokens, width]` behind the first `at` tokens, rounded to the type that is kept. Values that
    /// are in the keys are not given.
    pub(crate) fn write(&self, keys: &Tensor, values: Option<&Tensor>, at: usize) -> Result<()> {
        let tokens = keys.dim(1)?;
        let keys = as_kept(keys, self.keys.dtype())?;
        let values = values.map(|values| as_kept(values, self.values.dtype())).transpose()?;
        let new = || [Some((self.keys, &keys)), values.as_ref().map(|values| (self.values, values))];
        let mut done = 0;
        while done < tokens {
            let (first, within) = ((at + done) / BLOCK_TOKENS, (at + done) % BLOCK_TOKENS);
            let run = first_run(&self.blocks[first..]) * BLOCK_TOKENS - within;
            let (count, place) = (run.min(tokens - done), first_token(self.blocks[first]) + within);
            for (tensor, new) in new().into_iter().flatten() {
                let part = match count {
                    _ if count == tokens => Cow::Borrowed(new),
                    _ => Cow::Owned(new.narrow(1, done, count)?.contiguous()?),
                };
                tensor.slice_set(&part, 1, place)?;
            }
            done += count;
        }
        Ok(())
    }

    /// The first `tokens` keys and values in this type: views where the blocks lie one behind the other and are kept in
    /// it, copies else.
    pub(crate) fn first(&self, tokens: usize, dtype: DType, values: KvValues) -> Result<(Tensor, Tensor)> {
        let first = self.blocks.first().map_or(0, |block| first_token(*block));
        let places = self.places.map(|places| places.narrow(0, 0, tokens)).transpose()?;
        let read = |all: &Tensor| match &places {
            None => all.narrow(1, first, tokens)?.to_dtype(dtype),
            Some(places) => all.index_select(places, 1)?.to_dtype(dtype),
        };
        let keys = read(self.keys)?;
        let values = match values {
            KvValues::Apart(_) => read(self.values)?,
            KvValues::InKeys(width) => keys.narrow(2, 0, width)?.contiguous()?,
        };
        Ok((keys, values))
    }
}

/// A tensor in the type that is kept. Numbers beyond the range of f16 stay at its end, as on the CPU.
fn as_kept(new: &Tensor, dtype: DType) -> Result<Tensor> {
    let largest = f16::MAX.to_f64();
    match dtype {
        _ if new.dtype() == dtype => Ok(new.clone()),
        DType::F16 => new.clamp(-largest, largest)?.to_dtype(dtype),
        _ => new.to_dtype(dtype),
    }
}

/// The first block that a step writes, and the one behind the last.
fn written(step: &DecoderStep<'_>) -> (usize, usize) {
    (step.past / BLOCK_TOKENS, (step.past + step.tokens.len()).div_ceil(BLOCK_TOKENS))
}

/// The place of a block's first token in a device's tensors.
pub(super) fn first_token(block: BlockId) -> usize {
    block.0 as usize * BLOCK_TOKENS
}

/// How many blocks, from the first on, lie one behind the other.
fn first_run(blocks: &[BlockId]) -> usize {
    let follows = |pair: &&[BlockId]| pair[1].0 == pair[0].0.wrapping_add(1);
    blocks.len().min(1 + blocks.windows(2).take_while(follows).count())
}

/// Bytes of keys and values of one sequence of `tokens` in some layers: whole blocks.
pub(crate) fn bytes_of_layers(spec: &DecoderSpec, layers: Range<usize>, target: &WeightTarget, tokens: usize) -> usize {
    tokens.next_multiple_of(BLOCK_TOKENS).saturating_mul(bytes_per_token(spec, layers, target))
}

/// Bytes of keys and values for one token in some layers.
pub(crate) fn bytes_per_token(spec: &DecoderSpec, layers: Range<usize>, target: &WeightTarget) -> usize {
    let of_layer = |layer: &LayerSpec| {
        let Some(LayerKvShape { kv_heads, head_dim, values }) = LayerKvShape::of(&layer.mixer) else { return 0 };
        kv_heads * (target.cached.bytes_of(head_dim) + target.cached.bytes_of(values.apart()))
    };
    spec.layers.get(layers).unwrap_or_default().iter().map(of_layer).sum()
}
