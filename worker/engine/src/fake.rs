//! A decoder made of arithmetic, for tests: exact, deterministic, and as slow or broken as a test wants.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use crate::decoder::{Decoder, DecoderError, DecoderInfo, KvSlot, Logits, SequenceStep};
use crate::text::{Tokenizer, Vocabulary, fixture};

/// The choice of the token that the fake decoder favours.
#[derive(Clone, Debug)]
pub enum Script {
    /// After any prompt: these tokens, one after another, again and again from the start.
    Answer(Vec<u32>),
    /// A hash of everything the sequence holds, over this many tokens of the vocabulary. A wrong token, or one of
    /// another sequence, gives another answer.
    Hash(u32),
}

/// Computes logits from a [`Script`].
pub struct FakeDecoder {
    info: DecoderInfo,
    script: Script,
    control: FakeControl,
    permits: Option<Receiver<()>>,
    open: HashMap<KvSlot, FakeSequence>,
    opened: u32,
}

#[derive(Default)]
struct FakeSequence {
    tokens: Vec<u32>,
    capacity: usize,
    /// Tokens held when logits were first asked for.
    prompt: Option<usize>,
}

/// The handle by which a test sees and breaks the decoder from outside the engine's thread.
#[derive(Clone, Default)]
pub struct FakeControl(Arc<Mutex<Controlled>>);

#[derive(Default)]
struct Controlled {
    fail_next: Option<DecoderError>,
    poison: Option<u32>,
    most_open: Option<usize>,
    batches: Vec<Vec<usize>>,
    open: usize,
}

impl FakeControl {
    fn with<T>(&self, act: impl FnOnce(&mut Controlled) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The next step fails like this.
    pub fn fail_next(&self, error: DecoderError) {
        self.with(|state| state.fail_next = Some(error));
    }

    /// Every step with this token in it fails.
    pub fn poison(&self, token: u32) {
        self.with(|state| state.poison = Some(token));
    }

    /// More open sequences than this are out of memory.
    pub fn most_open(&self, sequences: usize) {
        self.with(|state| state.most_open = Some(sequences));
    }

    /// Tokens each sequence brought, for each step so far.
    pub fn batches(&self) -> Vec<Vec<usize>> {
        self.with(|state| state.batches.clone())
    }

    /// Sequences open now.
    pub fn open(&self) -> usize {
        self.with(|state| state.open)
    }
}

impl FakeDecoder {
    /// A decoder over the vocabulary of [`byte_tokenizer`].
    pub fn new(script: Script, context_length: usize) -> Self {
        let info = DecoderInfo { vocab_size: 262, context_length, kv_bytes_per_token: 8, weight_bytes: 1_000 };
        Self { info, script, control: FakeControl::default(), permits: None, open: HashMap::new(), opened: 0 }
    }

    /// The handle for the test.
    pub fn control(&self) -> FakeControl {
        self.control.clone()
    }

    /// Makes every step wait for a permit; after the sender is dropped, steps run freely.
    pub fn gated(&mut self) -> Sender<()> {
        let (permit, permits) = channel();
        self.permits = Some(permits);
        permit
    }

    fn check(&self, batch: &[SequenceStep<'_>]) -> Result<(), DecoderError> {
        let failing = self.control.with(|state| {
            state.batches.push(batch.iter().map(|step| step.tokens.len()).collect());
            let poisoned = state.poison.is_some_and(|token| batch.iter().any(|step| step.tokens.contains(&token)));
            state.fail_next.take().or_else(|| poisoned.then(|| DecoderError::Step("poisoned".to_owned())))
        });
        failing.map_or(Ok(()), Err)?;
        for step in batch {
            let Some(sequence) = self.open.get(&step.kv) else {
                return Err(DecoderError::Step("a closed sequence".to_owned()));
            };
            if step.tokens.is_empty() || sequence.tokens.len() + step.tokens.len() > sequence.capacity {
                return Err(DecoderError::Step("no tokens, or more than the capacity".to_owned()));
            }
        }
        Ok(())
    }

    fn row(&self, sequence: &FakeSequence, held: usize) -> Vec<f32> {
        let mut row = vec![-1.0; self.info.vocab_size];
        match &self.script {
            Script::Answer(answer) => {
                let said = held - sequence.prompt.unwrap_or(held);
                if let Some(token) = answer.get(said % answer.len().max(1)) {
                    row[*token as usize] = 9.0;
                }
            }
            Script::Hash(tokens) => {
                let hash = sequence.tokens[..held].iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, token| {
                    (hash ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3)
                });
                for token in 0..*tokens {
                    let mixed = (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    row[token as usize] = (mixed >> 40) as f32 / (1_u64 << 22) as f32;
                }
            }
        }
        row
    }
}

impl Decoder for FakeDecoder {
    fn info(&self) -> &DecoderInfo {
        &self.info
    }

    fn open(&mut self, capacity: usize) -> Result<KvSlot, DecoderError> {
        if self.control.with(|state| state.most_open).is_some_and(|most| self.open.len() >= most) {
            return Err(DecoderError::OutOfMemory("the fake is full".to_owned()));
        }
        let kv = KvSlot(self.opened);
        self.opened += 1;
        self.open.insert(kv, FakeSequence { capacity, ..FakeSequence::default() });
        self.control.with(|state| state.open += 1);
        Ok(kv)
    }

    fn close(&mut self, kv: KvSlot) {
        if self.open.remove(&kv).is_some() {
            self.control.with(|state| state.open -= 1);
        }
    }

    fn len(&self, kv: KvSlot) -> usize {
        self.open.get(&kv).map_or(0, |sequence| sequence.tokens.len())
    }

    fn truncate(&mut self, kv: KvSlot, len: usize) {
        if let Some(sequence) = self.open.get_mut(&kv) {
            sequence.tokens.truncate(len);
        }
    }

    fn forward_until(
        &mut self,
        batch: &[SequenceStep<'_>],
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<Vec<f32>>, DecoderError> {
        if self.permits.as_ref().is_some_and(|permits| permits.recv().is_err()) {
            self.permits = None;
        }
        if stop() {
            return Err(DecoderError::Interrupted);
        }
        self.check(batch)?;
        let mut out = Vec::with_capacity(batch.len());
        for step in batch {
            let mut sequence = self.open.remove(&step.kv).unwrap_or_default();
            let before = sequence.tokens.len();
            sequence.tokens.extend_from_slice(step.tokens);
            let after = sequence.tokens.len();
            let first = after - step.logits.rows(step.tokens.len()).min(after - before);
            if step.logits == Logits::Last && sequence.prompt.is_none() {
                sequence.prompt = Some(after);
            }
            out.push((first..after).flat_map(|index| self.row(&sequence, index + 1)).collect());
            self.open.insert(step.kv, sequence);
        }
        Ok(out)
    }
}

/// A vocabulary of bytes: token N is the byte N below 256, then `<s>`, `</s>`, `<|im_start|>`, `<|im_end|>`,
/// `<think>` and `</think>`; `</s>` and `<|im_end|>` end a turn.
pub fn byte_tokenizer() -> Tokenizer {
    fixture::byte_level()
}

/// The table of [`byte_tokenizer`].
#[allow(clippy::expect_used)]
pub fn byte_vocabulary() -> Vocabulary {
    byte_tokenizer().vocabulary().expect("262 tokens are not too many")
}

/// The `tokenizer.json` of [`byte_tokenizer`].
pub fn byte_tokenizer_json() -> Vec<u8> {
    fixture::byte_level_json()
}

/// An answer of these words and then the end of the turn, for [`Script::Answer`].
pub fn words(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).chain([259]).collect()
}
