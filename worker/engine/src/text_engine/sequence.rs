//! A sequence in the batch: its tokens for a step, and the use of its logits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::activity::{Activity, End};
use crate::batch::SequenceStage;
use crate::decoder::{KvSlot, Logits, SequenceStep};
use crate::engine::{
    FinishReason, Finished, Generate, Reply, SequenceEvent, SequenceId, SequenceTimings, TokenUsage, WorkError,
};
use crate::sampling::{LogprobRow, Sampler, TokenLogprob, TopLogprob};
use crate::text::{AnswerPart, Detokenizer, Stopped, TextStream, Thoughts, Trimmed, Vocabulary};

/// A sequence that waits for its place.
pub(super) struct Sequence {
    id: SequenceId,
    reply: Box<dyn Reply>,
    prompt: Arc<[u32]>,
    /// Most tokens to sample; bounded by the context.
    max_tokens: usize,
    ignore_eos: bool,
    logprobs: Option<usize>,
    prompt_logprobs: bool,
    sampler: Sampler,
    text: TextStream,
    thinking: Option<ThinkingState>,
    submitted: Instant,
}

/// The thoughts in front of an answer.
struct ThinkingState {
    thoughts: Thoughts,
    text: Detokenizer,
    shown: Trimmed,
    /// Whether the answer behind them has begun: it does not begin with white space.
    answer_begun: bool,
}

impl Sequence {
    /// `work` fits the context: its prompt leaves room for a token unless none is wanted.
    pub(super) fn new(
        id: SequenceId,
        work: Generate,
        reply: Box<dyn Reply>,
        context_length: usize,
        vocabulary: &Arc<Vocabulary>,
    ) -> Self {
        let room = context_length.saturating_sub(work.prompt.len());
        let thinking = work.thinking.map(|plan| ThinkingState {
            thoughts: Thoughts::new(plan, &work.prompt, vocabulary),
            text: Detokenizer::new(Arc::clone(vocabulary), &work.prompt),
            shown: Trimmed::default(),
            answer_begun: false,
        });
        Self {
            id,
            reply,
            max_tokens: work.max_tokens.unwrap_or(room).min(room),
            ignore_eos: work.ignore_eos,
            logprobs: work.logprobs,
            prompt_logprobs: work.prompt_logprobs,
            sampler: Sampler::new(work.sampling, &work.prompt, work.choice),
            text: TextStream::new(Arc::clone(vocabulary), &work.prompt, work.stop),
            thinking,
            prompt: work.prompt,
            submitted: Instant::now(),
        }
    }

    pub(super) fn id(&self) -> SequenceId {
        self.id
    }

    pub(super) fn reply(&self) -> &dyn Reply {
        &*self.reply
    }

    /// Tokens the decoder will have to hold at most.
    pub(super) fn capacity(&self) -> usize {
        self.prompt.len() + self.max_tokens
    }

    pub(super) fn fail(&mut self, error: WorkError) {
        self.reply.send(SequenceEvent::Failed(error));
    }
}

/// A sequence in the batch.
pub(super) struct RunningSequence {
    sequence: Sequence,
    kv: KvSlot,
    /// Prompt tokens evaluated.
    fed: usize,
    /// The token sampled last, still to be evaluated.
    next: u32,
    sampled: usize,
    admitted: Instant,
    prompt_done: Option<Instant>,
    last_token: Instant,
    prompt_logprobs: Vec<TokenLogprob>,
    /// Log-probabilities whose text is still held back, each with the place in the text where its token begins.
    held: VecDeque<(usize, TokenLogprob)>,
    /// Bytes of text the tokens so far gave.
    produced: usize,
    /// Bytes of it that were sent.
    given: usize,
}

/// The state of a sequence after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Continuation {
    Continues,
    Ended(End),
}

/// The most logits that one step may return for one sequence (128 MiB). Log-probabilities of a prompt over a large
/// vocabulary would otherwise need more memory than the model.
const MOST_LOGITS: usize = 32 << 20;

impl RunningSequence {
    pub(super) fn new(sequence: Sequence, kv: KvSlot) -> Self {
        let now = Instant::now();
        Self {
            sequence,
            kv,
            fed: 0,
            next: 0,
            sampled: 0,
            admitted: now,
            prompt_done: None,
            last_token: now,
            prompt_logprobs: Vec::new(),
            held: VecDeque::new(),
            produced: 0,
            given: 0,
        }
    }

    pub(super) fn id(&self) -> SequenceId {
        self.sequence.id
    }

    pub(super) fn kv(&self) -> KvSlot {
        self.kv
    }

    pub(super) fn reply(&self) -> &dyn Reply {
        &*self.sequence.reply
    }

    pub(super) fn stage(&self, vocab_size: usize) -> SequenceStage {
        match self.sequence.prompt.len() - self.fed {
            0 => SequenceStage::Decode,
            remaining if self.sequence.prompt_logprobs => {
                SequenceStage::Prefill { remaining, at_most: (MOST_LOGITS / vocab_size.max(1)).max(1) }
            }
            remaining => SequenceStage::Prefill { remaining, at_most: usize::MAX },
        }
    }

    /// The next tokens to evaluate, `share` of them.
    pub(super) fn step(&self, share: usize) -> SequenceStep<'_> {
        let prompt = &self.sequence.prompt;
        if self.fed == prompt.len() {
            return SequenceStep { kv: self.kv, tokens: std::slice::from_ref(&self.next), logits: Logits::Last };
        }
        let end = self.fed + share;
        let logits = if self.sequence.prompt_logprobs {
            Logits::All
        } else if end < prompt.len() {
            Logits::None
        } else {
            Logits::Last
        };
        SequenceStep { kv: self.kv, tokens: &prompt[self.fed..end], logits }
    }

    pub(super) fn fail(&mut self, error: WorkError) -> Continuation {
        self.sequence.fail(error);
        Continuation::Ended(End::Failed)
    }

    /// Takes the rows of logits behind `share` evaluated tokens.
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
        let prompt_len = self.sequence.prompt.len();
        if self.fed < prompt_len {
            if self.sequence.prompt_logprobs {
                self.note_prompt_logprobs(share, &rows, vocabulary);
            }
            self.fed += share;
            if self.fed < prompt_len {
                return Continuation::Continues;
            }
            self.prompt_done = Some(Instant::now());
            let prompt_logprobs = std::mem::take(&mut self.prompt_logprobs);
            self.sequence.reply.send(SequenceEvent::Started { prompt_logprobs });
            if self.sequence.max_tokens == 0 {
                return self.finish(FinishReason::Length);
            }
            if self.sequence.prompt_logprobs {
                rows.drain(..rows.len() / share * (share - 1));
            }
        }
        self.sample(&mut rows, vocabulary, activity)
    }

    fn sample(&mut self, logits: &mut [f32], vocabulary: &Vocabulary, activity: &Activity) -> Continuation {
        // The model's own distribution has to be read before the sampler bends it.
        let raw = self.sequence.logprobs.map(|top| (LogprobRow::new(logits, top), logits.to_vec()));
        let forced = self.sequence.thinking.as_ref().and_then(|thinking| thinking.thoughts.forced());
        let token = match forced {
            Some(token) => {
                self.sequence.sampler.accept(token);
                token
            }
            None => match self.sequence.sampler.sample(logits) {
                Some(token) => token,
                None => return self.fail(WorkError::NotFinite),
            },
        };
        self.note_time(activity);
        self.sampled += 1;
        self.next = token;
        if forced.is_none() && vocabulary.ends(token) && !self.sequence.ignore_eos {
            return self.finish(FinishReason::Stop);
        }
        if self.think(token, vocabulary) != AnswerPart::Answer {
            return self.continue_or_end();
        }
        let piece = self.sequence.text.push(token);
        if let Some((row, logits)) = raw {
            let logit = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
            self.held.push_back((self.produced, token_logprob(token, row.of(logit), &row, vocabulary)));
        }
        self.produced += piece.produced;
        self.give(piece.text);
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
        } else {
            Continuation::Continues
        }
    }

    /// Separates thinking from the answer; both texts are sent.
    fn think(&mut self, token: u32, vocabulary: &Vocabulary) -> AnswerPart {
        let Some(thinking) = &mut self.sequence.thinking else { return AnswerPart::Answer };
        let part = thinking.thoughts.push(token, vocabulary);
        if part == AnswerPart::Thought {
            let text = thinking.shown.push(&thinking.text.push(token));
            if !text.is_empty() {
                self.sequence.reply.send(SequenceEvent::Thought { text, sampled: self.sampled });
            }
        }
        part
    }

    fn note_time(&mut self, activity: &Activity) {
        let now = Instant::now();
        let histograms = activity.histograms();
        match self.sampled {
            0 => histograms.first_token.record(now.duration_since(self.sequence.submitted)),
            _ => histograms.next_token.record(now.duration_since(self.last_token)),
        }
        self.last_token = now;
        activity.sampled();
    }

    /// Sends text with the log-probabilities of the tokens that begin in it.
    fn give(&mut self, mut text: String) {
        self.given += text.len();
        if let Some(thinking) = self.sequence.thinking.as_mut().filter(|thinking| !thinking.answer_begun) {
            text = text.trim_start().to_owned();
            thinking.answer_begun = !text.is_empty();
        }
        let ready = self.held.iter().take_while(|(start, _)| *start < self.given).count();
        let logprobs: Vec<_> = self.held.drain(..ready).map(|(_, logprob)| logprob).collect();
        if !text.is_empty() || !logprobs.is_empty() {
            self.sequence.reply.send(SequenceEvent::Text { text, logprobs, sampled: self.sampled });
        }
    }

    fn finish(&mut self, reason: FinishReason) -> Continuation {
        let rest = self.sequence.text.finish();
        self.give(rest);
        let leftover: Vec<_> = self.held.drain(..).map(|(_, logprob)| logprob).collect();
        if !leftover.is_empty() {
            let (text, sampled) = (String::new(), self.sampled);
            self.sequence.reply.send(SequenceEvent::Text { text, logprobs: leftover, sampled });
        }
        let prompt_done = self.prompt_done.unwrap_or(self.admitted);
        let finished = Finished {
            reason,
            stop: self.sequence.text.stopped_by().map(str::to_owned),
            usage: TokenUsage {
                prompt_tokens: self.sequence.prompt.len(),
                completion_tokens: self.sampled,
                cached_tokens: 0,
                thought_tokens: self.sequence.thinking.as_ref().map_or(0, |thinking| thinking.thoughts.count()),
            },
            timings: SequenceTimings {
                queued: self.admitted.duration_since(self.sequence.submitted),
                prompt: prompt_done.duration_since(self.admitted),
                predicted: self.last_token.saturating_duration_since(prompt_done),
            },
        };
        self.sequence.reply.send(SequenceEvent::Finished(finished));
        Continuation::Ended(End::Finished)
    }

    /// Records log-probabilities of the prompt: row `i` gives that of the token after the step's token `i`.
    fn note_prompt_logprobs(&mut self, share: usize, rows: &[f32], vocabulary: &Vocabulary) {
        let prompt = &self.sequence.prompt;
        let vocab_size = rows.len() / share;
        let top = self.sequence.logprobs.unwrap_or(0);
        if self.fed == 0 {
            self.prompt_logprobs.push(TokenLogprob { logprob: None, ..spelled(prompt[0], vocabulary) });
        }
        for (row, &token) in rows.chunks_exact(vocab_size).zip(&prompt[self.fed + 1..]) {
            let reading = LogprobRow::new(row, top);
            let logprob = reading.of(row.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY));
            self.prompt_logprobs.push(token_logprob(token, logprob, &reading, vocabulary));
        }
    }
}

fn spelled(token: u32, vocabulary: &Vocabulary) -> TokenLogprob {
    let bytes = vocabulary.bytes(token).to_vec();
    TokenLogprob { text: String::from_utf8_lossy(&bytes).into_owned(), bytes, logprob: None, top: Vec::new() }
}

fn token_logprob(token: u32, logprob: f32, row: &LogprobRow, vocabulary: &Vocabulary) -> TokenLogprob {
    let alternative = |&(token, logprob): &(u32, f32)| {
        let TokenLogprob { text, bytes, .. } = spelled(token, vocabulary);
        TopLogprob { text, bytes, logprob }
    };
    TokenLogprob {
        logprob: Some(logprob),
        top: row.top().iter().map(alternative).collect(),
        ..spelled(token, vocabulary)
    }
}
