//! A sequence in the batch: its tokens for a step, and the use of its logits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use model_boss_protocol::Priority;

use crate::activity::{Activity, End};
use crate::batch::SequenceStage;
use crate::constraint::MaskThreads;
use crate::decoder::{DecoderStep, Logits};
use crate::drafts::MOST_DRAFTED;
use crate::engine::{FinishReason, Finished, Reply, SequenceEvent, SequenceId, SequenceTimings, TokenUsage, WorkError};
use crate::kv::{BLOCK_TOKENS, BlockTable, CacheSalt, blocks_for};
use crate::sampling::{LogprobRow, TokenLogprob};
use crate::text::{AnswerPart, NextPart, Stopped, Vocabulary};
use crate::tools::ToolEvent;

use super::allowed::{Allowed, AnswerNext};
use super::continuation::Continuation;
use super::drafting::Drafting;
use super::images::SequenceImages;
use super::logprobs::{most_rows, note_prompt, token_logprob};
use super::waiting::Sequence;

/// A sequence that waits for its place in the batch, or is in it. One that had to give its blocks back waits again, and
/// goes on with all else that it has.
pub(super) struct RunningSequence {
    sequence: Sequence,
    /// Its number: later ones came later.
    arrival: u64,
    /// The prompt, then the sampled tokens. The last of those is not evaluated yet.
    tokens: Vec<u32>,
    images: SequenceImages,
    /// The blocks of its keys and values; none while it waits.
    table: Option<BlockTable>,
    /// The class of its length that the blocks are computed for.
    length_class: usize,
    sampled: usize,
    /// Tokens of thoughts in channels so far.
    thought: usize,
    /// Prompt tokens that did not have to be evaluated.
    cached: usize,
    admitted: Option<Instant>,
    prompt_done: Option<Instant>,
    last_token: Instant,
    prompt_logprobs: Vec<TokenLogprob>,
    /// Log-probabilities whose text is still held back, each with the place in the text where its token begins.
    held: VecDeque<(usize, TokenLogprob)>,
    /// Bytes of text the tokens so far gave.
    produced: usize,
    /// Bytes of it that were sent.
    given: usize,
    /// Rows of logits that wait until it is known which tokens may come next.
    parked: Option<Vec<f32>>,
    drafting: Drafting,
}

impl RunningSequence {
    pub(super) fn new(sequence: Sequence, images: SequenceImages, arrival: u64) -> Self {
        let tokens = sequence.prompt.to_vec();
        Self {
            arrival,
            tokens,
            images,
            table: None,
            length_class: 0,
            sampled: 0,
            thought: 0,
            cached: 0,
            admitted: None,
            prompt_done: None,
            last_token: sequence.submitted,
            sequence,
            prompt_logprobs: Vec::new(),
            held: VecDeque::new(),
            produced: 0,
            given: 0,
            parked: None,
            drafting: Drafting::default(),
        }
    }

    pub(super) fn id(&self) -> SequenceId {
        self.sequence.id
    }

    /// Its place in every order: the more important come first, and of those the ones that came first.
    pub(super) fn rank(&self) -> (Priority, u64) {
        (self.sequence.priority, self.arrival)
    }

    pub(super) fn reply(&self) -> &dyn Reply {
        &*self.sequence.reply
    }

    /// All tokens so far, the one sampled last included.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The numbers that its blocks are found by, one for each token so far.
    pub(super) fn keys(&self) -> &[u32] {
        self.images.keys(&self.tokens)
    }

    pub(super) fn images(&self) -> &SequenceImages {
        &self.images
    }

    pub(super) fn images_mut(&mut self) -> &mut SequenceImages {
        &mut self.images
    }

    pub(super) fn salt(&self) -> Option<&CacheSalt> {
        self.sequence.cache.as_ref()
    }

    pub(super) fn is_greedy(&self) -> bool {
        self.sequence.sampler.is_greedy()
    }

    pub(super) fn length_class(&self) -> usize {
        self.length_class
    }

    /// Enters the batch with these blocks, for a class of its length.
    pub(super) fn admit(&mut self, table: BlockTable, length_class: usize) {
        self.length_class = length_class;
        if self.admitted.is_none() {
            self.admitted = Some(Instant::now());
            self.cached = table.len();
        }
        self.table = Some(table);
        self.report();
    }

    /// Reports how much of its prompt is evaluated.
    fn report(&mut self) {
        let (cached_tokens, evaluated) = (self.cached, self.fed());
        self.sequence.report(SequenceEvent::Evaluating { cached_tokens, evaluated }, self.prompt_done);
    }

    /// Its blocks and the keys of its tokens, for a cache that changes the blocks.
    pub(super) fn table(&mut self) -> Option<(&mut BlockTable, &[u32])> {
        let keys = self.images.keys(&self.tokens);
        self.table.as_mut().map(|table| (table, keys))
    }

    /// Takes its blocks away, and the logits that were computed with them: both are computed again. The state of its
    /// form stays, since it covers every token sampled so far.
    pub(super) fn take_table(&mut self) -> Option<BlockTable> {
        let evaluated = self.parked.take().is_some();
        self.drafting.leave(evaluated);
        self.table.take()
    }

    /// Tokens whose keys and values are there.
    pub(super) fn fed(&self) -> usize {
        self.table.as_ref().map_or(0, BlockTable::len)
    }

    /// Whether its answer may need more blocks than it has.
    pub(super) fn may_grow(&self) -> bool {
        let blocks = self.table.as_ref().map_or(0, |table| table.blocks().len());
        let longest = self.sequence.prompt.len().saturating_add(self.sequence.max_tokens);
        blocks_for(longest.min(self.sequence.context_length)) > blocks
    }

    /// Forgets the older half of its tokens behind those that stay. Its blocks were taken away before.
    pub(super) fn shift(&mut self) {
        let Some(shift) = self.sequence.shift else { return };
        let context = self.sequence.context_length;
        let keep = shift.keep.min(self.sequence.prompt.len()).min(context - context / 4);
        let forgotten = (self.tokens.len().saturating_sub(keep) / 2).max(1);
        self.tokens.drain(keep..(keep + forgotten).min(self.tokens.len()));
    }

    /// Whether its prompt is still evaluated for the first time.
    pub(super) fn is_in_prompt(&self) -> bool {
        self.prompt_done.is_none()
    }

    pub(super) fn stage(&self, vocab_size: usize) -> SequenceStage {
        match self.tokens.len() - self.fed() {
            _ if self.parked.is_some() => SequenceStage::Waiting,
            1 if !self.is_in_prompt() => SequenceStage::Decode,
            remaining if self.sequence.prompt_logprobs => {
                SequenceStage::Prefill { remaining, at_most: most_rows(vocab_size) }
            }
            remaining => SequenceStage::Prefill { remaining, at_most: usize::MAX },
        }
    }

    /// The next tokens to evaluate, `share` of them. Of one that decodes, those behind the first are of its draft.
    pub(super) fn step(&self, share: usize) -> DecoderStep<'_> {
        let (past, blocks) = (self.fed(), self.table.as_ref().map_or(&[][..], BlockTable::blocks));
        let (end, adapter, images) = (past + share, self.sequence.adapter.as_ref(), self.images.steps());
        if self.drafting.is_there() {
            let (tokens, logits) = (&self.drafting.ahead[..share], Logits::All);
            return DecoderStep { blocks, past, length: end, shared: 0, tokens, images, adapter, logits };
        }
        let logits = if self.sequence.prompt_logprobs && self.is_in_prompt() {
            Logits::All
        } else if end < self.tokens.len() {
            Logits::None
        } else {
            Logits::Last
        };
        let (length, shared) = (self.tokens.len(), self.table.as_ref().map_or(0, BlockTable::shared));
        let tokens = &self.tokens[past..end];
        DecoderStep { blocks, past, length, shared, tokens, images, adapter, logits }
    }

    pub(super) fn fail(&mut self, error: WorkError) -> Continuation {
        self.sequence.fail(error);
        Continuation::Ended(End::Failed)
    }

    /// Whether logits wait, and with them a draft that they may confirm.
    pub(super) fn is_parked(&self) -> bool {
        self.parked.is_some()
    }

    /// The most tokens of a draft behind all that it has; no logits wait.
    pub(super) fn draft_room(&self) -> usize {
        if self.is_in_prompt() || self.fed() + 1 != self.tokens.len() {
            return 0;
        }
        // Blocks are not taken for drafts: other sequences may need them.
        let room = self.table.as_ref().map_or(0, |table| table.blocks().len() * BLOCK_TOKENS);
        let room = room.min(self.sequence.context_length).saturating_sub(self.tokens.len());
        // The token behind a draft comes with it.
        let left = (self.sequence.max_tokens - self.sampled).saturating_sub(1);
        room.min(left).min(MOST_DRAFTED)
    }

    /// Its draft, and the tokens that it is behind.
    pub(super) fn drafts(&mut self) -> (&mut Drafting, &[u32]) {
        (&mut self.drafting, &self.tokens)
    }

    /// Keeps so many tokens of its draft. Threads compute what may follow each of them, beside the decoder.
    pub(super) fn keep_drafted(&mut self, count: usize) {
        self.drafting.keep(count);
        let next = self.sequence.thinking.as_ref().map(|thinking| thinking.thoughts.next());
        let is_answer = next.is_none_or(|next| matches!(next, NextPart::Answer { opening: None }));
        if let Some(constraint) = self.sequence.constraint.as_mut().filter(|_| is_answer)
            && self.drafting.is_there()
        {
            constraint.foresee(&self.drafting.ahead[1..]);
        }
    }

    /// Takes the rows of logits behind `share` evaluated tokens, which its blocks hold by now.
    pub(super) fn advance(
        &mut self,
        share: usize,
        mut rows: Vec<f32>,
        vocabulary: &Vocabulary,
        activity: &Activity,
    ) -> Continuation {
        if share == 0 {
            return Continuation::Continues;
        }
        let in_prompt = self.is_in_prompt();
        if in_prompt && self.sequence.prompt_logprobs {
            let (prompt, top) = (&self.sequence.prompt, self.sequence.logprobs.unwrap_or(0));
            let behind = self.fed() - share;
            note_prompt(&mut self.prompt_logprobs, prompt, (behind, share), (&rows, top), vocabulary);
        }
        self.report();
        if self.fed() < self.tokens.len() {
            return Continuation::Continues;
        }
        if in_prompt {
            self.prompt_done = Some(Instant::now());
            let (prompt_logprobs, cached_tokens) = (std::mem::take(&mut self.prompt_logprobs), self.cached);
            self.sequence.reply.send(SequenceEvent::Started { prompt_logprobs, cached_tokens });
            if self.sequence.max_tokens == 0 {
                return self.finish(FinishReason::Length);
            }
            if self.sequence.prompt_logprobs {
                rows.drain(..rows.len() / share * (share - 1));
            }
        }
        self.choose(rows, vocabulary, activity)
    }

    /// Chooses the next token, and those behind it for as long as they are the draft's.
    fn choose(&mut self, mut rows: Vec<f32>, vocabulary: &Vocabulary, activity: &Activity) -> Continuation {
        let left = self.drafting.rows_left();
        let width = rows.len() / left;
        loop {
            let behind = rows.split_off(width);
            let next = self.sample(rows, vocabulary, activity);
            if let Some(parked) = &mut self.parked {
                parked.extend(behind);
                return next;
            }
            let is_right = next == Continuation::Continues && self.drafting.confirm(self.tokens.last());
            if !is_right {
                activity.drafted(self.drafting.end());
                return next;
            }
            rows = behind;
        }
    }

    /// The threads that compute the tokens which may come next, where a form binds the answer.
    pub(super) fn mask_threads(&self) -> Option<&Arc<MaskThreads>> {
        self.sequence.constraint.as_ref().map(|constraint| constraint.grammar().threads())
    }

    /// Goes on with logits that waited, and ends an answer whose form is complete before another step is spent on it.
    pub(super) fn resume(&mut self, vocabulary: &Vocabulary, activity: &Activity) -> Continuation {
        if let Some(rows) = self.parked.take() {
            return self.choose(rows, vocabulary, activity);
        }
        if !self.is_in_prompt()
            && self.sequence.constraint.is_some()
            && matches!(self.sequence.allowed(), Some(Ok(Allowed::Nothing)))
        {
            return self.finish(FinishReason::Stop);
        }
        Continuation::Continues
    }

    /// Keeps logits until it is known which tokens may come next. Others of the batch do not wait for that.
    fn park(&mut self, logits: Vec<f32>) -> Continuation {
        self.parked = Some(logits);
        Continuation::Continues
    }

    fn sample(&mut self, mut logits: Vec<f32>, vocabulary: &Vocabulary, activity: &Activity) -> Continuation {
        let allowed = match self.sequence.allowed() {
            Some(Ok(allowed)) => allowed,
            Some(Err(error)) => return self.fail(error),
            None => return self.park(logits),
        };
        if allowed.apply(&mut logits, vocabulary) == AnswerNext::End {
            return self.finish(FinishReason::Stop);
        }
        let logits = logits.as_mut_slice();
        if let Some(channels) = &self.sequence.channels {
            channels.apply(logits, vocabulary);
        }
        // The distribution has to be read before the sampler bends it.
        let raw = self.sequence.logprobs.map(|top| (LogprobRow::new(logits, top), logits.to_vec()));
        let forced = self.sequence.forced();
        let token = match forced {
            Some(token) => Some(self.sequence.sampler.accept(token)),
            None => self.sequence.sampler.sample(logits),
        };
        let Some(token) = token else { return self.fail(WorkError::NotFinite) };
        self.note_time(activity);
        self.sampled += 1;
        self.tokens.push(token);
        self.images.push(token);
        // Where a form binds the answer, an end is sampled only where the form is complete.
        let may_end = !self.sequence.ignore_eos || self.sequence.constraint.is_some();
        if forced.is_none() && vocabulary.ends(token) && may_end {
            return self.finish(FinishReason::Stop);
        }
        if self.think(token, vocabulary) != AnswerPart::Answer {
            return self.continue_or_end();
        }
        if let Some(constraint) = &mut self.sequence.constraint {
            constraint.accept(token);
        }
        let (was_hidden, was_thought) = (self.sequence.text.is_hidden(), self.sequence.text.is_in_thought());
        let piece = self.sequence.text.push(token);
        let is_thought = forced.is_none() && was_thought && self.sequence.text.is_in_thought();
        self.thought += usize::from(is_thought);
        if let Some(channels) = &mut self.sequence.channels {
            channels.push(forced.is_some(), is_thought);
        }
        if let Some((row, logits)) = raw.filter(|_| !was_hidden) {
            let logit = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
            self.held.push_back((self.produced, token_logprob(token, row.of(logit), &row, vocabulary)));
        }
        self.produced += piece.produced;
        self.give_parts(piece.parts);
        if piece.stopped == Stopped::Yes {
            // Tokens of the stop string are no part of the answer.
            self.held.clear();
            return self.finish(FinishReason::Stop);
        }
        self.continue_or_end()
    }

    fn continue_or_end(&mut self) -> Continuation {
        if self.sampled == self.sequence.max_tokens {
            self.finish(FinishReason::Length)
        } else if self.tokens.len() > self.sequence.context_length {
            Continuation::NeedsShift
        } else {
            Continuation::Continues
        }
    }

    /// Separates thinking from the answer; both texts are sent.
    fn think(&mut self, token: u32, vocabulary: &Vocabulary) -> AnswerPart {
        let Some(thinking) = &mut self.sequence.thinking else { return AnswerPart::Answer };
        let (part, text) = thinking.push(token, vocabulary);
        if !text.is_empty() {
            self.sequence.reply.send(SequenceEvent::Thought { text, sampled: self.sampled });
        }
        part
    }

    fn note_time(&mut self, activity: &Activity) {
        let now = Instant::now();
        let histograms = activity.histograms();
        let histogram = if self.sampled == 0 { &histograms.first_token } else { &histograms.next_token };
        // Before the first token, the last is the time of the arrival.
        histogram.record(now.duration_since(self.last_token));
        self.last_token = now;
        activity.sampled();
    }

    /// Sends parts of the answer.
    fn give_parts(&mut self, parts: Vec<ToolEvent>) {
        if self.sequence.text.is_cut() {
            // Places in the text count for nothing where parts are cut out of it: log-probabilities go out at once.
            self.given = self.produced;
            if parts.is_empty() && !self.held.is_empty() {
                self.give(String::new());
            }
        }
        let sampled = self.sampled;
        for part in parts {
            let event = match part {
                ToolEvent::Text(text) => {
                    self.give(text);
                    continue;
                }
                ToolEvent::Thought(text) => SequenceEvent::Thought { text, sampled },
                ToolEvent::Begin { index, name } => {
                    SequenceEvent::Call { index, name: Some(name), arguments: String::new(), sampled }
                }
                ToolEvent::Arguments { index, piece } => {
                    SequenceEvent::Call { index, name: None, arguments: piece, sampled }
                }
            };
            self.sequence.reply.send(event);
        }
    }

    /// Sends text with the log-probabilities of the tokens that begin in it.
    fn give(&mut self, mut text: String) {
        if !self.sequence.text.is_cut() {
            self.given += text.len();
        }
        if let Some(thinking) = self.sequence.thinking.as_mut().filter(|thinking| !thinking.answer_begun) {
            text = text.trim_start().to_owned();
            thinking.answer_begun = !text.is_empty();
        }
        let all = self.sequence.text.is_cut();
        let ready = self.held.iter().take_while(|(start, _)| all || *start < self.given).count();
        let logprobs: Vec<_> = self.held.drain(..ready).map(|(_, logprob)| logprob).collect();
        if !text.is_empty() || !logprobs.is_empty() {
            self.sequence.reply.send(SequenceEvent::Text { text, logprobs, sampled: self.sampled });
        }
    }

    fn finish(&mut self, reason: FinishReason) -> Continuation {
        let rest = self.sequence.text.finish(reason);
        self.give_parts(rest);
        let logprobs: Vec<_> = self.held.drain(..).map(|(_, logprob)| logprob).collect();
        if !logprobs.is_empty() {
            self.sequence.reply.send(SequenceEvent::Text { text: String::new(), logprobs, sampled: self.sampled });
        }
        let admitted = self.admitted.unwrap_or(self.sequence.submitted);
        let prompt_done = self.prompt_done.unwrap_or(admitted);
        let finished = Finished {
            reason,
            stop: self.sequence.text.stopped_by().map(str::to_owned),
            usage: TokenUsage {
                prompt_tokens: self.sequence.prompt.len(),
                completion_tokens: self.sampled,
                cached_tokens: self.cached,
                thought_tokens: self.thought
                    + self.sequence.thinking.as_ref().map_or(0, |thinking| thinking.thoughts.count()),
                drafted_tokens: self.drafting.evaluated(),
                accepted_tokens: self.drafting.accepted,
            },
            timings: SequenceTimings {
                queued: admitted.duration_since(self.sequence.submitted),
                prompt: prompt_done.duration_since(admitted),
                predicted: self.last_token.saturating_duration_since(prompt_done),
            },
        };
        self.sequence.reply.send(SequenceEvent::Finished(finished));
        Continuation::Ended(End::Finished)
    }
}
