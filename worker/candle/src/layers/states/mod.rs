//! States of sequences, which layers without keys and values have in their place. A state belongs to the block that
//! holds the last of its tokens. A step computes on copies, which are kept once the whole step has ended well.
//!
//! A step may also keep states inside of its piece ([`cuts`]), so that other sequences can begin behind them. There are
//! at most as many states as there is memory for; the ones that were not used for the longest time are dropped first.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use model_boss_engine::{BLOCK_TOKENS, BlockId, DecoderError, DecoderStep};

use crate::spec::DecoderSpec;

/// The most states that one step keeps inside of a sequence's piece.
const MOST_CUTS: usize = 16;

/// Where each layer's part of a state lies, in numbers of f32.
#[derive(Debug)]
pub(crate) struct StateLayout {
    layers: Vec<Range<usize>>,
    len: usize,
}

/// How many states are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateLimits {
    /// The most states.
    pub(crate) most: usize,
    /// Blocks from one state that is kept inside of a sequence to the next.
    pub(crate) every: usize,
}

impl StateLimits {
    /// No limit.
    pub(crate) const UNBOUNDED: Self = Self { most: usize::MAX, every: 1 };
}

/// All states of a decoder.
pub(crate) struct StateStore {
    layout: Arc<StateLayout>,
    limits: StateLimits,
    /// By block, and by how many of its tokens the state is behind.
    kept: HashMap<BlockId, BTreeMap<usize, KeptState>>,
    /// The places of states; the one that was not used for the longest time is first.
    by_age: BTreeMap<u64, StatePlace>,
    clock: u64,
    /// Memory of dropped states for the next steps.
    spare: Vec<Vec<f32>>,
    most_spare: usize,
}

type StatePlace = (BlockId, usize);

struct KeptState {
    values: Arc<Vec<f32>>,
    age: u64,
    stays: Stays,
    /// The state that this one was computed from.
    from: Option<StatePlace>,
}

/// How long a state is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stays {
    /// Until its sequence has gone on.
    UntilNext,
    /// As long as its block, or until there are too many.
    WithBlock,
}

/// The states of a step's sequences, as the step computes them.
pub(crate) struct StepStates {
    layout: Arc<StateLayout>,
    sequences: Vec<SequenceStates>,
}

struct SequenceStates {
    blocks: Vec<BlockId>,
    past: usize,
    end: usize,
    /// Whether the last state is for others too.
    stays: Stays,
    /// The state behind the past; none for zeros.
    before: Option<Arc<Vec<f32>>>,
    after: Vec<f32>,
    /// Tokens of the sequence, and the state behind them.
    inside: Vec<(usize, Vec<f32>)>,
}

/// One layer's state of one sequence: behind its past at first, and behind the step's rows in the end.
pub(crate) struct LayerState<'a> {
    values: &'a mut [f32],
    /// Rows of the step, and the copy of the state behind them.
    inside: Vec<(usize, &'a mut [f32])>,
}

impl StateLayout {
    pub(crate) fn new(spec: &DecoderSpec) -> Self {
        let mut len = 0;
        let layers = spec.layers.iter().map(|layer| {
            let first = len;
            len += layer.mixer.state_len();
            first..len
        });
        Self { layers: layers.collect(), len }
    }

    /// Bytes of some layers' part of a state.
    pub(crate) fn bytes(&self, layers: Range<usize>) -> usize {
        let ranges = self.layers.get(layers).unwrap_or_default();
        ranges.iter().map(|range| range.len() * size_of::<f32>()).sum()
    }
}

impl StateStore {
    pub(crate) fn new(layout: StateLayout, limits: StateLimits) -> Self {
        Self {
            layout: Arc::new(layout),
            limits,
            kept: HashMap::new(),
            by_age: BTreeMap::new(),
            clock: 0,
            spare: Vec::new(),
            most_spare: 0,
        }
    }

    /// States that are kept.
    pub(crate) fn len(&self) -> usize {
        self.by_age.len()
    }

    /// The most of the first `tokens` tokens in these blocks that have a state.
    pub(crate) fn resumable(&self, blocks: &[BlockId], tokens: usize) -> usize {
        if self.layout.len == 0 {
            return tokens;
        }
        let last = |(at, block): (usize, &BlockId)| {
            let most = tokens.saturating_sub(at * BLOCK_TOKENS).min(BLOCK_TOKENS);
            let (count, _) = self.kept.get(block)?.range(..=most).next_back()?;
            Some(at * BLOCK_TOKENS + count)
        };
        let blocks = &blocks[..tokens.div_ceil(BLOCK_TOKENS).min(blocks.len())];
        blocks.iter().enumerate().rev().find_map(last).unwrap_or(0)
    }

    /// Begins a step with the states of its sequences.
    pub(crate) fn begin(&mut self, batch: &[DecoderStep<'_>]) -> Result<StepStates, DecoderError> {
        let mut sequences = Vec::new();
        if self.layout.len > 0 {
            for step in batch {
                let lacks = || DecoderError::Step(format!("a sequence has no state behind {} tokens", step.past));
                let before = match place(step.blocks, step.past) {
                    None if step.past > 0 => return Err(lacks()),
                    None => None,
                    Some(place) => Some(self.take_up(place).ok_or_else(lacks)?),
                };
                let (past, end) = (step.past, step.past + step.tokens.len());
                let is_cut = |tokens: usize| is_cut(tokens, step, self.limits.every);
                let ends_prompt = step.tokens.len() > 1 && end == step.length;
                let stays = if ends_prompt || is_cut(end) { Stays::WithBlock } else { Stays::UntilNext };
                let inside: Vec<usize> = (past / BLOCK_TOKENS + 1..end.div_ceil(BLOCK_TOKENS))
                    .map(|block| block * BLOCK_TOKENS)
                    .filter(|tokens| is_cut(*tokens))
                    .collect();
                let inside = inside[inside.len().saturating_sub(MOST_CUTS)..].iter();
                let inside = inside.map(|tokens| (*tokens, self.memory())).collect();
                let (blocks, after) = (step.blocks.to_vec(), self.memory());
                sequences.push(SequenceStates { blocks, past, end, stays, before, after, inside });
            }
        }
        self.most_spare = batch.len();
        Ok(StepStates { layout: Arc::clone(&self.layout), sequences })
    }

    /// A state that a sequence goes on from. It counts as new from now on.
    fn take_up(&mut self, (block, count): StatePlace) -> Option<Arc<Vec<f32>>> {
        let kept = self.kept.get_mut(&block)?.get_mut(&count)?;
        self.by_age.remove(&kept.age);
        kept.age = self.clock;
        self.by_age.insert(kept.age, (block, count));
        self.clock += 1;
        Some(Arc::clone(&kept.values))
    }

    /// Keeps the states of a step that has ended well.
    pub(crate) fn commit(&mut self, step: StepStates) {
        for sequence in step.sequences {
            let SequenceStates { blocks, past, end, stays, before, after, inside } = sequence;
            drop(before);
            let from = self.leave(&blocks, past);
            // States that written blocks held behind the past are gone.
            for (at, block) in blocks.iter().enumerate().take(end.div_ceil(BLOCK_TOKENS)).skip(past / BLOCK_TOKENS) {
                let left = past.saturating_sub(at * BLOCK_TOKENS);
                self.drop_where(*block, |count, _| count > left);
            }
            for (tokens, values) in inside {
                self.keep(place(&blocks, tokens), values, Stays::WithBlock, None);
            }
            self.keep(place(&blocks, end), after, stays, from);
        }
        while self.by_age.len() > self.limits.most {
            let Some((_, (block, count))) = self.by_age.pop_first() else { break };
            self.drop_where(block, |other, _| other == count);
        }
    }

    /// Ends a step that has failed: all states are as they were.
    pub(crate) fn abandon(&mut self, step: StepStates) {
        for sequence in step.sequences {
            self.reuse(sequence.after);
        }
    }

    /// A sequence goes on from the state behind its past. It is not needed any more, unless others can begin there.
    /// Where they can in the block of another sequence, that is known one step later. Returns the state if it is left.
    fn leave(&mut self, blocks: &[BlockId], past: usize) -> Option<StatePlace> {
        let (block, count) = place(blocks, past)?;
        let left = self.kept.get_mut(&block)?.get_mut(&count)?;
        let (from, stays) = (left.from.take(), left.stays);
        if let Some((block, count)) = from {
            self.drop_where(block, |other, kept| other == count && kept.stays == Stays::UntilNext);
        }
        if stays == Stays::WithBlock {
            return None;
        }
        if count < BLOCK_TOKENS {
            self.drop_where(block, |other, _| other == count);
            return None;
        }
        Some((block, count))
    }

    /// Gives a block the states of another that holds the same tokens, in place of its own.
    pub(crate) fn copy(&mut self, from: BlockId, to: BlockId) {
        self.drop_where(to, |_, _| true);
        self.copy_some(from, to, Stays::UntilNext);
    }

    /// Gives a block the states of another that holds the first of its tokens, beside its own.
    pub(crate) fn merge(&mut self, from: BlockId, to: BlockId) {
        self.copy_some(from, to, Stays::WithBlock);
    }

    fn copy_some(&mut self, from: BlockId, to: BlockId, stays: Stays) {
        let copied = self.kept.get(&from).into_iter().flatten();
        let copied: Vec<_> = copied.map(|(count, kept)| (*count, Arc::clone(&kept.values))).collect();
        for (count, values) in copied {
            if !self.kept.get(&to).is_some_and(|kept| kept.contains_key(&count)) {
                self.insert((to, count), values, stays, None);
            }
        }
    }

    /// Appends all states of a block: how many there are, and of each the number of its tokens and its values.
    pub(crate) fn read_block(&self, block: BlockId, contents: &mut Vec<u8>) {
        if self.layout.len == 0 {
            return;
        }
        let kept = self.kept.get(&block);
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
        contents.extend_from_slice(&number(kept.map_or(0, BTreeMap::len)));
        for (count, state) in kept.into_iter().flatten() {
            contents.extend_from_slice(&number(*count));
            contents.extend(state.values.iter().flat_map(|value| value.to_le_bytes()));
        }
    }

    /// The states that [`Self::read_block`] gave, with the number of their tokens; none for bytes that are no such
    /// thing.
    pub(crate) fn states_in(&self, contents: &[u8]) -> Option<Vec<(usize, Vec<f32>)>> {
        if self.layout.len == 0 {
            return contents.is_empty().then(Vec::new);
        }
        let (count, mut rest) = contents.split_first_chunk()?;
        let mut states = Vec::new();
        for _ in 0..u32::from_le_bytes(*count) {
            let (tokens, behind) = rest.split_first_chunk()?;
            let (values, behind) = behind.split_at_checked(self.layout.len * size_of::<f32>())?;
            let tokens = usize::try_from(u32::from_le_bytes(*tokens)).ok()?;
            if tokens == 0 || tokens > BLOCK_TOKENS {
                return None;
            }
            let values = values.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            states.push((tokens, values));
            rest = behind;
        }
        rest.is_empty().then_some(states)
    }

    /// Keeps states of a block that came from elsewhere, as many as there is memory for.
    pub(crate) fn write_block(&mut self, block: BlockId, states: Vec<(usize, Vec<f32>)>) {
        self.drop_where(block, |_, _| true);
        for (tokens, values) in states {
            if self.by_age.len() < self.limits.most {
                self.insert((block, tokens), Arc::new(values), Stays::WithBlock, None);
            }
        }
    }

    /// Drops the states of blocks that hold nothing any more.
    pub(crate) fn free(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            self.drop_where(*block, |_, _| true);
        }
        if self.kept.is_empty() {
            self.spare.clear();
        }
    }

    fn keep(&mut self, place: Option<StatePlace>, values: Vec<f32>, stays: Stays, from: Option<StatePlace>) {
        if let Some(place) = place {
            self.insert(place, Arc::new(values), stays, from);
        }
    }

    fn insert(&mut self, place: StatePlace, values: Arc<Vec<f32>>, stays: Stays, from: Option<StatePlace>) {
        let age = self.clock;
        self.clock += 1;
        let (block, count) = place;
        self.drop_where(block, |other, _| other == count);
        self.by_age.insert(age, place);
        self.kept.entry(block).or_default().insert(count, KeptState { values, age, stays, from });
    }

    fn drop_where(&mut self, block: BlockId, drops: impl Fn(usize, &KeptState) -> bool) {
        let Some(kept) = self.kept.get_mut(&block) else { return };
        let counts = kept.iter().filter(|(count, state)| drops(**count, state)).map(|(count, _)| *count);
        let counts: Vec<usize> = counts.collect();
        let dropped: Vec<KeptState> = counts.iter().filter_map(|count| kept.remove(count)).collect();
        if kept.is_empty() {
            self.kept.remove(&block);
        }
        for state in dropped {
            self.by_age.remove(&state.age);
            if let Ok(values) = Arc::try_unwrap(state.values) {
                self.reuse(values);
            }
        }
    }

    /// Memory for a state; its values are of no meaning.
    fn memory(&mut self) -> Vec<f32> {
        self.spare.pop().unwrap_or_else(|| vec![0.0; self.layout.len])
    }

    fn reuse(&mut self, values: Vec<f32>) {
        if self.spare.len() < self.most_spare {
            self.spare.push(values);
        }
    }
}

impl StepStates {
    /// One layer's state of every sequence; empty for a layer that has none.
    pub(crate) fn layer(&mut self, index: usize) -> Vec<LayerState<'_>> {
        let Some(range) = self.layout.layers.get(index).filter(|range| !range.is_empty()) else { return Vec::new() };
        let state = |sequence| {
            let SequenceStates { past, before, after, inside, .. }: &mut SequenceStates = sequence;
            let values = &mut after[range.clone()];
            match before {
                Some(before) => values.copy_from_slice(&before[range.clone()]),
                None => values.fill(0.0),
            }
            let inside = inside.iter_mut().map(|(tokens, copy)| (*tokens - *past, &mut copy[range.clone()]));
            LayerState { values, inside: inside.collect() }
        };
        self.sequences.iter_mut().map(state).collect()
    }
}

impl LayerState<'_> {
    /// Computes on a sequence's rows, of which there are `rows`, in pieces: each gets its rows, and the state behind
    /// those before.
    pub(crate) fn run(&mut self, rows: usize, mut piece: impl FnMut(Range<usize>, &mut [f32])) {
        let mut first = 0;
        for (end, copy) in &mut self.inside {
            piece(first..*end, self.values);
            copy.copy_from_slice(self.values);
            first = *end;
        }
        if first < rows {
            piece(first..rows, self.values);
        }
    }
}

/// The place of the state behind some tokens; none behind no token.
fn place(blocks: &[BlockId], tokens: usize) -> Option<StatePlace> {
    let last = tokens.checked_sub(1)?;
    Some((*blocks.get(last / BLOCK_TOKENS)?, last % BLOCK_TOKENS + 1))
}

/// Whether others may begin behind these tokens of a sequence. They may at the end of each group of blocks, at the end
/// of what the sequence shares with an earlier one, and at the last end of a block in its prompt: the same prompt needs
/// logits behind its last token again.
fn is_cut(tokens: usize, step: &DecoderStep<'_>, every: usize) -> bool {
    let whole = |tokens: usize| tokens / BLOCK_TOKENS * BLOCK_TOKENS;
    tokens > 0
        && tokens.is_multiple_of(BLOCK_TOKENS)
        && ((tokens / BLOCK_TOKENS).is_multiple_of(every.max(1))
            || tokens == whole(step.shared)
            || tokens == whole(step.length.saturating_sub(1)))
}

#[cfg(test)]
mod tests;
