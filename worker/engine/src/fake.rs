//! A decoder made of arithmetic, for tests: exact, deterministic, and as slow or broken as a test wants.

use std::collections::{BTreeSet, HashMap};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use model_boss_images::{ImageLayout, SightFacts};

use crate::decoder::{BlockId, Decoder, DecoderError, DecoderInfo, DecoderStep, Logits};
use crate::images::{ImageTiles, SeenRows};
use crate::kv::BLOCK_TOKENS;
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

/// Computes logits from a [`Script`], of what its blocks hold: a wrong block gives another answer, and a block that one
/// sequence writes while another has it is an error.
pub struct FakeDecoder {
    info: DecoderInfo,
    script: Script,
    control: FakeControl,
    permits: Option<Receiver<()>>,
    /// The tokens of each block that holds any.
    blocks: HashMap<BlockId, Vec<u32>>,
    /// The class of lengths and the adapter that each block was computed for.
    classes: HashMap<BlockId, (usize, u64)>,
    /// Lengths beyond this one are of a class of their own.
    longest_short: usize,
    /// How many tokens were the prompt's, by all tokens of a sequence when logits were last asked for.
    prompts: HashMap<Vec<u32>, usize>,
}

/// The handle by which a test sees and breaks the decoder from outside the engine's thread.
#[derive(Clone, Default)]
pub struct FakeControl(Arc<Mutex<Controlled>>);

#[derive(Default)]
struct Controlled {
    fail_next: Option<DecoderError>,
    poison: Option<u32>,
    most_blocks: Option<usize>,
    batches: Vec<Vec<usize>>,
    looks: Vec<usize>,
    blind: bool,
    blocks: usize,
    copies: usize,
    /// The block and the number of its tokens that each state is behind; none for a decoder without states.
    states: Option<BTreeSet<(BlockId, usize)>>,
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

    /// More blocks than this are out of memory, whatever the budget says.
    pub fn most_blocks(&self, blocks: usize) {
        self.with(|state| state.most_blocks = Some(blocks));
    }

    /// Tokens each sequence brought, for each step so far.
    pub fn batches(&self) -> Vec<Vec<usize>> {
        self.with(|state| state.batches.clone())
    }

    /// How many batches there had been when each image was looked at.
    pub fn looks(&self) -> Vec<usize> {
        self.with(|state| state.looks.clone())
    }

    /// Images cannot be looked at from now on.
    pub fn blind(&self) {
        self.with(|state| state.blind = true);
    }

    /// Blocks that hold tokens now.
    pub fn blocks(&self) -> usize {
        self.with(|state| state.blocks)
    }

    /// Forgets all states, as a decoder does that has too many.
    pub fn lose_states(&self) {
        self.with(|state| state.states = state.states.take().map(|_| BTreeSet::new()));
    }

    /// Blocks that were copied so far.
    pub fn copies(&self) -> usize {
        self.with(|state| state.copies)
    }
}

impl FakeDecoder {
    /// A decoder over the vocabulary of [`byte_tokenizer`].
    pub fn new(script: Script, context_length: usize) -> Self {
        let info = DecoderInfo {
            vocab_size: 262,
            context_length,
            kv_bytes_per_token: 8,
            state_bytes: 0,
            kv_blocks: usize::MAX,
            weight_bytes: 1_000,
            step_rows: 0,
            workspace_bytes: 0,
            same_in_any_step: false,
            sight: None,
            warnings: Vec::new(),
        };
        Self {
            info,
            script,
            control: FakeControl::default(),
            permits: None,
            blocks: HashMap::new(),
            classes: HashMap::new(),
            longest_short: usize::MAX,
            prompts: HashMap::new(),
        }
    }

    /// A decoder that says of itself that its logits depend on nothing else in a step.
    #[must_use]
    pub fn same_in_any_step(self) -> Self {
        Self { info: DecoderInfo { same_in_any_step: true, ..self.info }, ..self }
    }

    /// The same with a budget of blocks.
    pub fn with_blocks(self, kv_blocks: usize) -> Self {
        Self { info: DecoderInfo { kv_blocks, ..self.info }, ..self }
    }

    /// The same for which sequences of more tokens are of another class.
    pub fn with_longest_short(self, longest_short: usize) -> Self {
        Self { longest_short, ..self }
    }

    /// The same with a state behind each step, and behind the last whole block of a prompt.
    pub fn with_states(mut self) -> Self {
        self.info.state_bytes = 8;
        self.control.with(|state| state.states = Some(BTreeSet::new()));
        self
    }

    /// The same that sees images. The rows of one are numbers made of its digest.
    pub fn with_sight(mut self, sight: SightFacts) -> Self {
        self.see_by(sight);
        self
    }

    /// Images are seen from now on.
    pub fn see_by(&mut self, sight: SightFacts) {
        self.info.sight = Some(Arc::new(sight));
    }

    /// The tokens of a step, with what the model sees in the places of images.
    fn seen(&self, step: &DecoderStep<'_>) -> Result<Vec<u32>, DecoderError> {
        let (mut tokens, end) = (step.tokens.to_vec(), step.past + step.tokens.len());
        if let Some(adapter) = step.adapter {
            tokens.iter_mut().for_each(|token| *token ^= (adapter.id() as u32) << 12);
        }
        for image in step.images.iter().filter(|image| image.range.start < end && image.range.end > step.past) {
            if self.info.sight.as_ref().is_some_and(|sight| sight.both_ways) && end < image.range.end {
                return Err(DecoderError::Step("an image comes in pieces".to_owned()));
            }
            let Some(rows) = &image.rows else {
                return Err(DecoderError::Step("an image has no rows".to_owned()));
            };
            for place in image.range.start.max(step.past)..image.range.end.min(end) {
                tokens[place - step.past] = rows.embedded[place - image.range.start].to_bits();
            }
        }
        Ok(tokens)
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

    /// The class of lengths and the adapter that blocks of the step are computed for.
    fn class(&self, step: &DecoderStep<'_>) -> (usize, u64) {
        (self.length_class(step.length), step.adapter.map_or(0, |adapter| adapter.id()))
    }

    /// The tokens that a step's blocks hold.
    fn past(&self, step: &DecoderStep<'_>) -> Result<Vec<u32>, DecoderError> {
        let mut tokens = Vec::with_capacity(step.past);
        for block in step.blocks {
            let left = step.past - tokens.len();
            let held = self.blocks.get(block).map_or(&[][..], Vec::as_slice);
            let class = self.class(step);
            if left > 0 && self.classes.get(block).is_some_and(|of_block| *of_block != class) {
                return Err(DecoderError::Step(format!(
                    "block {} is of another class of lengths, or of another adapter",
                    block.0
                )));
            }
            if held.len() < left.min(BLOCK_TOKENS) {
                return Err(DecoderError::Step(format!("block {} holds {} tokens", block.0, held.len())));
            }
            tokens.extend_from_slice(&held[..left.min(BLOCK_TOKENS)]);
        }
        if tokens.len() < step.past {
            return Err(DecoderError::Step("fewer blocks than the past needs".to_owned()));
        }
        Ok(tokens)
    }

    fn check(&self, batch: &[DecoderStep<'_>]) -> Result<(), DecoderError> {
        let failing = self.control.with(|state| {
            state.batches.push(batch.iter().map(|step| step.tokens.len()).collect());
            let poisoned = state.poison.is_some_and(|token| batch.iter().any(|step| step.tokens.contains(&token)));
            state.fail_next.take().or_else(|| poisoned.then(|| DecoderError::Step("poisoned".to_owned())))
        });
        failing.map_or(Ok(()), Err)?;
        let lacks = |step: &DecoderStep<'_>| self.resumable(step.blocks, step.past) < step.past;
        if batch.iter().any(lacks) {
            return Err(DecoderError::Step("a sequence has no state".to_owned()));
        }
        let mut taken = self.blocks.len();
        for (index, step) in batch.iter().enumerate() {
            if step.tokens.is_empty() || step.past + step.tokens.len() > self.info.context_length {
                return Err(DecoderError::Step("no tokens, or more than the context".to_owned()));
            }
            let Some(written) = written(step) else {
                return Err(DecoderError::Step("fewer blocks than the tokens need".to_owned()));
            };
            let others = batch.iter().enumerate().filter(|(other, _)| *other != index);
            if others.flat_map(|(_, other)| other.blocks).any(|block| written.contains(block)) {
                return Err(DecoderError::Step("a block that is written is another's too".to_owned()));
            }
            taken += written.iter().filter(|block| !self.blocks.contains_key(block)).count();
        }
        let most = self.control.with(|state| state.most_blocks).unwrap_or(usize::MAX).min(self.info.kv_blocks);
        if taken > most {
            return Err(DecoderError::OutOfMemory("the fake is full".to_owned()));
        }
        Ok(())
    }

    fn row(&self, tokens: &[u32], prompt: usize) -> Vec<f32> {
        let mut row = vec![-1.0; self.info.vocab_size];
        match &self.script {
            Script::Answer(answer) => {
                let said = tokens.len() - prompt.min(tokens.len());
                if let Some(token) = answer.get(said % answer.len().max(1)) {
                    row[*token as usize] = 9.0;
                }
            }
            Script::Hash(count) => {
                let hash = tokens.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, token| {
                    (hash ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3)
                });
                for token in 0..*count {
                    let mixed = (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    row[token as usize] = (mixed >> 40) as f32 / (1_u64 << 22) as f32;
                }
            }
        }
        row
    }

    /// Keeps the states of a step.
    fn keep_states(&self, step: &DecoderStep<'_>) {
        self.control.with(|controlled| {
            let Some(states) = &mut controlled.states else { return };
            let end = step.past + step.tokens.len();
            let written = &step.blocks[step.past / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS)];
            let left = step.past % BLOCK_TOKENS;
            states.retain(|(block, count)| {
                let at = written.iter().position(|other| other == block);
                at.is_none_or(|at| at == 0 && *count <= left)
            });
            let whole = (step.length - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
            let of_prompt = Some(whole).filter(|whole| (step.past + 1..end).contains(whole));
            states.extend(
                of_prompt
                    .into_iter()
                    .chain([end])
                    .map(|tokens| (step.blocks[(tokens - 1) / BLOCK_TOKENS], (tokens - 1) % BLOCK_TOKENS + 1)),
            );
        });
    }

    fn note_blocks(&self) {
        self.control.with(|state| state.blocks = self.blocks.len());
    }
}

/// The blocks that a step writes; none if there are too few.
fn written<'a>(step: &DecoderStep<'a>) -> Option<&'a [BlockId]> {
    let end = (step.past + step.tokens.len()).div_ceil(BLOCK_TOKENS);
    step.blocks.get(step.past / BLOCK_TOKENS..end)
}

impl Decoder for FakeDecoder {
    fn info(&self) -> &DecoderInfo {
        &self.info
    }

    fn forward_until(
        &mut self,
        batch: &[DecoderStep<'_>],
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
            let mut tokens = self.past(step)?;
            let goes_on = step.tokens.len() == 1 || step.logits == Logits::All;
            let known = self.prompts.get(&tokens).copied().filter(|_| goes_on);
            tokens.extend(self.seen(step)?);
            for (at, block) in step.blocks.iter().enumerate().skip(step.past / BLOCK_TOKENS) {
                let first = at * BLOCK_TOKENS;
                if first < tokens.len() {
                    let held = tokens[first..tokens.len().min(first + BLOCK_TOKENS)].to_vec();
                    self.blocks.insert(*block, held);
                    self.classes.insert(*block, self.class(step));
                }
            }
            // An answer begins where logits are first asked for.
            let prompt = known.unwrap_or(tokens.len());
            let rows = step.logits.rows(step.tokens.len());
            let first = tokens.len() - rows;
            if step.logits == Logits::Last || known.is_some() {
                for end in first..tokens.len() {
                    self.prompts.insert(tokens[..=end].to_vec(), prompt);
                }
            }
            out.push((first..tokens.len()).flat_map(|index| self.row(&tokens[..=index], prompt)).collect());
        }
        batch.iter().for_each(|step| self.keep_states(step));
        self.note_blocks();
        Ok(out)
    }

    fn see(&mut self, picture: &ImageTiles, stop: &(dyn Fn() -> bool + Sync)) -> Result<SeenRows, DecoderError> {
        if stop() {
            return Err(DecoderError::Interrupted);
        }
        if self.control.with(|state| state.blind) {
            return Err(DecoderError::Step("the fake is blind".to_owned()));
        }
        self.control.with(|state| state.looks.push(state.batches.len()));
        let side = match self.info.sight.as_ref().map(|sight| &sight.layout) {
            Some(ImageLayout::Grid(layout)) => layout.side,
            _ => 1,
        };
        let [height, width] = picture.tiles.first().map_or(picture.sent, |tile| [tile.height, tile.width]);
        let places = (height / side) * (width / side);
        let number = |place: usize| f32::from_bits(0x3f80_0000 | (picture.digest.0[0] as u32) << 12 | place as u32);
        Ok(SeenRows { embedded: (0..places).map(number).collect(), behind_layers: Vec::new() })
    }

    fn resumable(&self, blocks: &[BlockId], tokens: usize) -> usize {
        self.control.with(|controlled| {
            let Some(states) = &controlled.states else { return tokens };
            let behind = |tokens: &usize| {
                states.contains(&(blocks[(tokens - 1) / BLOCK_TOKENS], (tokens - 1) % BLOCK_TOKENS + 1))
            };
            (1..=tokens).rev().find(behind).unwrap_or(0)
        })
    }

    fn merge(&mut self, from: BlockId, to: BlockId) {
        self.control.with(|controlled| {
            if let Some(states) = &mut controlled.states {
                let moved: Vec<_> = states.iter().filter(|(block, _)| *block == from).copied().collect();
                states.extend(moved.into_iter().map(|(_, count)| (to, count)));
            }
        });
    }

    fn length_class(&self, length: usize) -> usize {
        usize::from(length > self.longest_short)
    }

    fn block_layout(&self) -> Option<String> {
        Some(format!("{:?} {}", self.script, self.longest_short))
    }

    /// A block's tokens, what they were computed for, and the ends of its states, as numbers of eight bytes.
    fn read_block(&mut self, block: BlockId, contents: &mut Vec<u8>) -> Result<(), DecoderError> {
        let held = self.blocks.get(&block);
        let held = held.ok_or_else(|| DecoderError::Step(format!("block {} holds nothing", block.0)))?;
        let (class, adapter) = self.classes.get(&block).copied().unwrap_or_default();
        let states = self.control.with(|controlled| {
            let states = controlled.states.iter().flatten().filter(|(of, _)| *of == block);
            states.map(|(_, count)| *count as u64).collect::<Vec<_>>()
        });
        let tokens = held.iter().map(|token| u64::from(*token));
        let numbers = [held.len() as u64, class as u64, adapter].into_iter().chain(tokens).chain(states);
        contents.extend(numbers.flat_map(u64::to_le_bytes));
        Ok(())
    }

    fn write_block(&mut self, block: BlockId, contents: &[u8]) -> Result<(), DecoderError> {
        let numbers: Vec<u64> = contents.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let [count, class, adapter, rest @ ..] = numbers.as_slice() else {
            return Err(DecoderError::Step("the fake gave no such block".to_owned()));
        };
        let most = self.control.with(|state| state.most_blocks).unwrap_or(usize::MAX);
        if self.blocks.len() >= most {
            return Err(DecoderError::OutOfMemory("the fake is full".to_owned()));
        }
        let (tokens, states) = rest.split_at((*count as usize).min(rest.len()));
        self.blocks.insert(block, tokens.iter().map(|token| *token as u32).collect());
        self.classes.insert(block, (*class as usize, *adapter));
        self.control.with(|controlled| {
            if let Some(kept) = &mut controlled.states {
                kept.extend(states.iter().map(|count| (block, *count as usize)));
            }
        });
        self.note_blocks();
        Ok(())
    }

    fn copy(&mut self, from: BlockId, to: BlockId) -> Result<(), DecoderError> {
        let held = self.blocks.get(&from).cloned();
        let held = held.ok_or_else(|| DecoderError::Step(format!("block {} holds nothing", from.0)))?;
        self.blocks.insert(to, held);
        if let Some(class) = self.classes.get(&from).copied() {
            self.classes.insert(to, class);
        }
        self.control.with(|controlled| {
            controlled.copies += 1;
            if let Some(states) = &mut controlled.states {
                states.retain(|(block, _)| *block != to);
            }
        });
        self.merge(from, to);
        self.note_blocks();
        Ok(())
    }

    fn free(&mut self, blocks: &[BlockId]) {
        blocks.iter().for_each(|block| {
            self.blocks.remove(block);
            self.classes.remove(block);
        });
        self.control.with(|controlled| {
            if let Some(states) = &mut controlled.states {
                states.retain(|(block, _)| !blocks.contains(block));
            }
        });
        self.note_blocks();
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
