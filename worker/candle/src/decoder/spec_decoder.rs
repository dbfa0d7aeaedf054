//! The one decoder: runs a [`DecoderSpec`] over layers from any source, for several sequences at once. Keeps the
//! sequences' keys and values; knows no file and no sampling.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Storage, Tensor, bail};
use model_boss_engine::residency::Monitor;
use model_boss_engine::{Decoder, DecoderError, DecoderInfo, KvSlot, Logits, PlaceUse, SequenceStep};

use crate::decoder::stage::{Stage, StretchStep, monitor_over};
use crate::device;
use crate::kernels::product::contiguous;
use crate::layers::kv::SequenceKv;
use crate::layers::linear::Linear;
use crate::layers::norm::RmsNorm;
use crate::layers::rope::Rope;
use crate::layers::step::StepContext;
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;
use crate::spec::DecoderSpec;

/// A decoder over stretches of layers, each on a device.
pub(crate) struct SpecDecoder {
    info: DecoderInfo,
    spec: DecoderSpec,
    rope: Rope,
    ends: DecoderEnds,
    /// Stages in the order of the layers; never empty.
    stages: Vec<Stage>,
    /// The use of each stage's device.
    places: Arc<[PlaceUse]>,
    monitor: Option<Arc<Monitor>>,
    sequences: HashMap<KvSlot, SequenceKv>,
    next_slot: u32,
}

/// The weights outside of layers: those before the first are on the first stage's device, the others on the last's.
pub(crate) struct DecoderEnds {
    /// `[vocab, hidden]`.
    pub(crate) embedding: Matrix,
    pub(crate) norm: RmsNorm,
    pub(crate) head: Linear,
}

impl SpecDecoder {
    /// `stages` cover all layers in order.
    pub(crate) fn new(spec: DecoderSpec, context_length: usize, ends: DecoderEnds, stages: Vec<Stage>) -> Self {
        let places: Arc<[PlaceUse]> = stages.iter().map(|stage| stage.place(&spec)).collect();
        let info = DecoderInfo {
            vocab_size: spec.vocab,
            context_length,
            kv_bytes_per_token: places.iter().map(PlaceUse::kv_bytes_per_token).sum(),
            weight_bytes: stages.iter().map(|stage| stage.weight_bytes).sum(),
        };
        let (rope, monitor) = (Rope::new(&spec), monitor_over(&stages));
        Self { info, spec, rope, ends, stages, places, monitor, sequences: HashMap::new(), next_slot: 0 }
    }

    /// Publishes the room of keys and values to observers.
    fn note_room(&self) {
        let tokens = self.sequences.values().map(SequenceKv::room).sum();
        self.places.iter().for_each(|place| place.holds_tokens(tokens));
    }

    /// Refuses a batch that cannot be computed, before anything is touched.
    fn check(&self, batch: &[SequenceStep<'_>]) -> std::result::Result<(), DecoderError> {
        let refuse = |what: String| Err(DecoderError::Step(what));
        for (index, step) in batch.iter().enumerate() {
            let slot = step.kv.0;
            let Some(sequence) = self.sequences.get(&step.kv) else {
                return refuse(format!("sequence {slot} is not open"));
            };
            if batch[..index].iter().any(|earlier| earlier.kv == step.kv) {
                return refuse(format!("sequence {slot} stands in the batch twice"));
            }
            if step.tokens.is_empty() {
                return refuse(format!("sequence {slot} brings no tokens"));
            }
            if step.tokens.len() > sequence.capacity - sequence.len {
                let (held, new, capacity) = (sequence.len, step.tokens.len(), sequence.capacity);
                return refuse(format!("sequence {slot} holds {held} of {capacity} tokens, {new} more do not fit"));
            }
            if let Some(token) = step.tokens.iter().find(|token| **token as usize >= self.info.vocab_size) {
                return refuse(format!("token {token} is outside the vocabulary of {}", self.info.vocab_size));
            }
        }
        Ok(())
    }

    /// All layers over all rows: `[rows, hidden]`. Writes keys and values behind each sequence's length, which stays.
    fn run_layers(
        &mut self,
        batch: &[SequenceStep<'_>],
        sequences: &mut [SequenceKv],
        stop: &(dyn Fn() -> bool + Sync),
    ) -> std::result::Result<Tensor, DecoderError> {
        let fail = |error| device::failure(&error);
        let mut lengths = Vec::with_capacity(batch.len());
        for (step, sequence) in batch.iter().zip(sequences.iter_mut()) {
            let targets = self.stages.iter().flat_map(|stage| stage.layers.clone().map(|_| &stage.target));
            sequence.reserve(sequence.len + step.tokens.len(), &self.spec, targets).map_err(fail)?;
            lengths.push((sequence.len, step.tokens.len()));
        }
        let tokens: Vec<u32> = batch.iter().flat_map(|step| step.tokens).copied().collect();
        self.stages.iter_mut().for_each(|stage| stage.stretch.begin_step());
        let mut x: Option<Tensor> = None;
        for (stage, place) in self.stages.iter_mut().zip(self.places.iter()) {
            let rows = match &x {
                None => self.ends.embedding.rows(&tokens, &stage.target),
                Some(x) => {
                    place.received((x.elem_count() * stage.target.dtype.size_in_bytes()) as u64);
                    stage.receive(x)
                }
            };
            let WeightTarget { device, dtype, .. } = &stage.target;
            let context = StepContext::new(&lengths, self.spec.heads, &self.rope, *dtype, device).map_err(fail)?;
            let mut step = StretchStep { layers: stage.layers.clone(), sequences, context: &context, stop };
            let rows = rows.map_err(fail)?;
            // On one of the threads that share the products. From outside, each of some hundred products would put this
            // thread to sleep and wake it again. A device has a thread of its own and keeps it.
            let forward = || stage.stretch.forward(rows, &mut step);
            x = Some(if device.is_cpu() { rayon::scope(|_| forward()) } else { forward() }?);
        }
        x.ok_or_else(|| DecoderError::Step("the model has no layers".to_owned()))
    }

    /// Logits of the rows that were asked for, sequence by sequence.
    fn logits(&self, batch: &[SequenceStep<'_>], x: &Tensor) -> Result<Vec<Vec<f32>>> {
        let mut wanted: Vec<u32> = Vec::new();
        let mut end = 0;
        for step in batch {
            let rows = end..end + step.tokens.len() as u32;
            end = rows.end;
            match step.logits {
                Logits::None => {}
                Logits::Last => wanted.push(rows.end - 1),
                Logits::All => wanted.extend(rows),
            }
        }
        if wanted.is_empty() {
            return Ok(vec![Vec::new(); batch.len()]);
        }
        let wanted = Tensor::new(wanted, x.device())?;
        let rows = self.ends.norm.forward(&x.index_select(&wanted, 0)?)?;
        let logits = self.ends.head.forward(&rows)?.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
        let (storage, layout) = logits.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else { bail!("logits did not come to the host") };
        let mut left = contiguous(storage, layout)?;
        let rows = batch.iter().map(|step| {
            let (rows, rest) = left.split_at(step.logits.rows(step.tokens.len()) * self.info.vocab_size);
            left = rest;
            rows.to_vec()
        });
        Ok(rows.collect())
    }
}

impl Decoder for SpecDecoder {
    fn info(&self) -> &DecoderInfo {
        &self.info
    }

    fn open(&mut self, capacity: usize) -> std::result::Result<KvSlot, DecoderError> {
        if capacity > self.info.context_length {
            let context = self.info.context_length;
            return Err(DecoderError::Step(format!("{capacity} tokens do not fit into a context of {context}")));
        }
        // A closed slot's number comes back only after all others, so closing twice cannot hit a stranger.
        let mut slot = KvSlot(self.next_slot);
        while self.sequences.contains_key(&slot) {
            slot = KvSlot(slot.0.wrapping_add(1));
        }
        self.next_slot = slot.0.wrapping_add(1);
        self.sequences.insert(slot, SequenceKv::new(capacity));
        Ok(slot)
    }

    fn close(&mut self, kv: KvSlot) {
        if self.sequences.remove(&kv).is_some() {
            self.note_room();
            self.stages.iter().for_each(|stage| device::trim(&stage.target.device));
        }
    }

    fn len(&self, kv: KvSlot) -> usize {
        self.sequences.get(&kv).map_or(0, |sequence| sequence.len)
    }

    fn truncate(&mut self, kv: KvSlot, len: usize) {
        if let Some(sequence) = self.sequences.get_mut(&kv) {
            sequence.len = sequence.len.min(len);
        }
    }

    fn forward_until(
        &mut self,
        batch: &[SequenceStep<'_>],
        stop: &(dyn Fn() -> bool + Sync),
    ) -> std::result::Result<Vec<Vec<f32>>, DecoderError> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        self.check(batch)?;
        let on_cpu = self.stages.iter().all(|stage| stage.target.device.is_cpu());
        // Out of the map for the step, so that layers see them while the decoder is borrowed.
        let mut sequences: Vec<SequenceKv> = batch.iter().filter_map(|step| self.sequences.remove(&step.kv)).collect();
        let mut compute = || {
            let x = self.run_layers(batch, &mut sequences, stop)?;
            let logits = self.logits(batch, &x).map_err(|error| device::failure(&error))?;
            self.stages.iter_mut().for_each(|stage| stage.stretch.end_step());
            Ok(logits)
        };
        // As each stretch does, and with it everything around.
        let result = if on_cpu { rayon::scope(|_| compute()) } else { compute() };
        for (step, mut sequence) in batch.iter().zip(sequences) {
            if result.is_ok() {
                sequence.len += step.tokens.len();
            }
            self.sequences.insert(step.kv, sequence);
        }
        self.note_room();
        result
    }

    fn monitor(&self) -> Option<Arc<Monitor>> {
        self.monitor.clone()
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        Arc::clone(&self.places)
    }
}
