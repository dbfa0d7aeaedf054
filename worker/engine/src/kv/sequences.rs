//! A decoder with sequences that share nothing: for measurements, training and tests, which need no batching engine.

use std::collections::HashMap;
use std::sync::Arc;

use crate::adapter::{AdapterLoader, LoadedAdapter};
use crate::decoder::{Decoder, DecoderError, DecoderInfo, DecoderStep, Logits};
use crate::places::PlaceUse;
use crate::residency::Monitor;

use super::cache::{BlockTable, KvCache};

/// One sequence of [`Sequences`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvSlot(u32);

/// The tokens that one sequence brings to a step.
#[derive(Clone, Debug)]
pub struct SequenceStep<'a> {
    /// The sequence to continue.
    pub kv: KvSlot,
    /// The new tokens. Never empty.
    pub tokens: &'a [u32],
    /// The rows of logits to return.
    pub logits: Logits,
}

/// A decoder, and the blocks of the sequences that are open.
pub struct Sequences {
    decoder: Box<dyn Decoder>,
    cache: KvCache,
    open: HashMap<KvSlot, OpenSequence>,
    opened: u32,
}

struct OpenSequence {
    table: BlockTable,
    capacity: usize,
    /// Its tokens, to compute them again when its length gets another class.
    tokens: Vec<u32>,
    adapter: Option<Arc<LoadedAdapter>>,
}

impl Sequences {
    /// No sequence yet.
    pub fn over(decoder: Box<dyn Decoder>) -> Self {
        let cache = KvCache::new(decoder.info().kv_blocks);
        Self { decoder, cache, open: HashMap::new(), opened: 0 }
    }

    /// The decoder's facts.
    pub fn info(&self) -> &DecoderInfo {
        self.decoder.info()
    }

    /// The report on streamed layers; none where all layers are resident.
    pub fn monitor(&self) -> Option<Arc<Monitor>> {
        self.decoder.monitor()
    }

    /// The devices of the decoder's parts, in the order of the layers.
    pub fn places(&self) -> Arc<[PlaceUse]> {
        self.decoder.places()
    }

    /// Makes adapters for the decoder's model; none for a decoder that takes no adapters.
    pub fn adapter_loader(&self) -> Option<Arc<dyn AdapterLoader>> {
        self.decoder.adapter_loader()
    }

    /// A new, empty sequence that will hold at most `capacity` tokens.
    pub fn open(&mut self, capacity: usize) -> Result<KvSlot, DecoderError> {
        self.open_with(capacity, None)
    }

    /// The same, computed with an adapter.
    pub fn open_with(&mut self, capacity: usize, adapter: Option<Arc<LoadedAdapter>>) -> Result<KvSlot, DecoderError> {
        let context = self.info().context_length;
        if capacity > context {
            return Err(DecoderError::Step(format!("{capacity} tokens do not fit into a context of {context}")));
        }
        let admitted = self.cache.admit(None, &[], 0);
        let admitted = admitted.ok_or_else(|| DecoderError::OutOfMemory("for a sequence of no tokens".to_owned()))?;
        let slot = KvSlot(self.opened);
        self.opened = self.opened.wrapping_add(1);
        self.open.insert(slot, OpenSequence { table: admitted.table, capacity, tokens: Vec::new(), adapter });
        Ok(slot)
    }

    /// Forgets a sequence and frees its memory. Closing twice is harmless.
    pub fn close(&mut self, kv: KvSlot) {
        if let Some(sequence) = self.open.remove(&kv) {
            self.cache.release(sequence.table, &[]);
            self.give_back();
        }
    }

    /// Tokens the sequence holds.
    pub fn len(&self, kv: KvSlot) -> usize {
        self.open.get(&kv).map_or(0, |sequence| sequence.tokens.len())
    }

    /// Whether the sequence holds no token.
    pub fn is_empty(&self, kv: KvSlot) -> bool {
        self.len(kv) == 0
    }

    /// Keeps the first `len` tokens of a sequence and drops the rest. Of a model with states, the tokens behind the
    /// last state that was kept are computed again with the sequence's next step.
    pub fn truncate(&mut self, kv: KvSlot, len: usize) {
        if let Some(sequence) = self.open.get_mut(&kv) {
            let len = sequence.tokens.len().min(len);
            let computed = sequence.table.len().min(len);
            let computed = self.decoder.resumable(sequence.table.blocks(), computed);
            self.cache.truncate(&mut sequence.table, computed);
            sequence.tokens.truncate(len);
        }
        self.give_back();
    }

    /// Computes tokens of a sequence again that a truncation has left without keys, values and state.
    fn catch_up(&mut self, kv: KvSlot, stop: &(dyn Fn() -> bool + Sync)) -> Result<(), DecoderError> {
        let Some(OpenSequence { table, tokens, adapter, .. }) = self.open.get_mut(&kv) else { return Ok(()) };
        let (past, length) = (table.len(), tokens.len());
        if past < length {
            let (blocks, tokens) = (table.blocks(), &tokens[past..]);
            let (adapter, logits) = (adapter.as_ref(), Logits::None);
            let step = DecoderStep { blocks, past, length, shared: 0, tokens, images: &[], adapter, logits };
            self.decoder.forward_until(&[step], stop)?;
            self.cache.advance(table, &[], length);
        }
        Ok(())
    }

    /// As [`Self::forward_until`], to the end.
    pub fn forward(&mut self, batch: &[SequenceStep<'_>]) -> Result<Vec<Vec<f32>>, DecoderError> {
        self.forward_until(batch, &|| false)
    }

    /// Appends each sequence's tokens and computes the requested logits, as [`Decoder::forward_until`] does. On an
    /// error no sequence's length has changed.
    pub fn forward_until(
        &mut self,
        batch: &[SequenceStep<'_>],
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<Vec<f32>>, DecoderError> {
        for step in batch {
            let slot = step.kv.0;
            let Some(sequence) = self.open.get_mut(&step.kv) else {
                return Err(DecoderError::Step(format!("sequence {slot} is not open")));
            };
            let (held, new, capacity) = (sequence.tokens.len(), step.tokens.len(), sequence.capacity);
            if new > capacity - held {
                let why = format!("sequence {slot} holds {held} of {capacity} tokens, {new} more do not fit");
                return Err(DecoderError::Step(why));
            }
            if !self.cache.grow(&mut sequence.table, held + new) {
                return Err(DecoderError::OutOfMemory("all blocks of keys and values are in use".to_owned()));
            }
        }
        for step in batch {
            self.catch_up(step.kv, stop)?;
        }
        let (again, others): (Vec<&SequenceStep<'_>>, Vec<_>) = batch.iter().partition(|step| self.changes_class(step));
        let mut rows: HashMap<KvSlot, Vec<f32>> = HashMap::new();
        for step in again {
            rows.insert(step.kv, self.compute_again(step, stop)?);
        }
        let steps = others.iter().filter_map(|step| {
            let OpenSequence { table, adapter, .. } = self.open.get(&step.kv)?;
            let (blocks, past, adapter) = (table.blocks(), table.len(), adapter.as_ref());
            let SequenceStep { tokens, logits, .. } = **step;
            let length = past + tokens.len();
            Some(DecoderStep { blocks, past, length, shared: 0, tokens, images: &[], adapter, logits })
        });
        let steps: Vec<DecoderStep<'_>> = steps.collect();
        rows.extend(others.iter().map(|step| step.kv).zip(self.decoder.forward_until(&steps, stop)?));
        for step in others {
            if let Some(sequence) = self.open.get_mut(&step.kv) {
                let len = sequence.table.len() + step.tokens.len();
                self.cache.advance(&mut sequence.table, &[], len);
                sequence.tokens.extend_from_slice(step.tokens);
            }
        }
        Ok(batch.iter().map(|step| rows.remove(&step.kv).unwrap_or_default()).collect())
    }

    /// Whether what a sequence holds is of no use to it with the step's tokens.
    fn changes_class(&self, step: &SequenceStep<'_>) -> bool {
        let held = self.len(step.kv);
        held > 0 && self.decoder.length_class(held) != self.decoder.length_class(held + step.tokens.len())
    }

    /// Computes a sequence from its beginning, in blocks of its own until that has ended well.
    fn compute_again(
        &mut self,
        step: &SequenceStep<'_>,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<f32>, DecoderError> {
        let full = || DecoderError::OutOfMemory("all blocks of keys and values are in use".to_owned());
        let Some(sequence) = self.open.get_mut(&step.kv) else { return Ok(Vec::new()) };
        let mut tokens = sequence.tokens.clone();
        tokens.extend_from_slice(step.tokens);
        let mut table = self.cache.admit(None, &[], 0).ok_or_else(full)?.table;
        let computed = if self.cache.grow(&mut table, tokens.len()) {
            let (length, logits) = (tokens.len(), step.logits);
            let whole = DecoderStep {
                blocks: table.blocks(),
                past: 0,
                length,
                shared: 0,
                tokens: &tokens,
                images: &[],
                adapter: sequence.adapter.as_ref(),
                logits,
            };
            self.decoder.forward_until(&[whole], stop)
        } else {
            Err(full())
        };
        let dropped = match &computed {
            Ok(_) => {
                self.cache.advance(&mut table, &[], tokens.len());
                std::mem::replace(&mut sequence.table, table)
            }
            Err(_) => table,
        };
        self.cache.release(dropped, &[]);
        self.give_back();
        let mut rows = computed?.pop().unwrap_or_default();
        let wanted = step.logits.rows(step.tokens.len()) * self.info().vocab_size;
        rows.drain(..rows.len().saturating_sub(wanted));
        if let Some(sequence) = self.open.get_mut(&step.kv) {
            sequence.tokens = tokens;
        }
        Ok(rows)
    }

    fn give_back(&mut self) {
        let freed = self.cache.take_freed();
        if !freed.is_empty() {
            self.decoder.free(&freed);
        }
    }
}
