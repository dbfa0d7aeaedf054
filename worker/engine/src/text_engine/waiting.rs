//! Sequences that wait for their places in the batch.

use std::sync::Arc;
use std::time::Instant;

use crate::adapter::LoadedAdapter;
use crate::constraint::Constraint;
use crate::engine::{ContextShift, Generate, Reply, SequenceEvent, SequenceId, WorkError};
use crate::kv::CacheSalt;
use crate::sampling::Sampler;
use crate::text::Vocabulary;
use model_boss_protocol::Priority;

use super::allowed::Allowed;
use super::stream::TextStream;
use super::thinking::{ChannelState, ThinkingState};

/// The longest answer that forgets its oldest tokens, in contexts.
const LONGEST_SHIFTED: usize = 10;

/// A sequence that waits for its place.
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    pub(super) reply: Box<dyn Reply>,
    pub(super) prompt: Arc<[u32]>,
    /// Most tokens to sample; bounded by the context, or by ten times as much for an answer that goes on without its
    /// oldest tokens.
    pub(super) max_tokens: usize,
    pub(super) context_length: usize,
    pub(super) shift: Option<ContextShift>,
    pub(super) ignore_eos: bool,
    pub(super) logprobs: Option<usize>,
    pub(super) prompt_logprobs: bool,
    /// Whether progress of the prompt is reported.
    pub(super) progress: bool,
    pub(super) sampler: Sampler,
    pub(super) text: TextStream,
    pub(super) thinking: Option<ThinkingState>,
    pub(super) channels: Option<ChannelState>,
    /// Shares blocks with sequences of the same salt.
    pub(super) cache: Option<CacheSalt>,
    pub(super) adapter: Option<Arc<LoadedAdapter>>,
    /// The form that the answer is held to.
    pub(super) constraint: Option<Constraint>,
    pub(super) submitted: Instant,
    pub(super) priority: Priority,
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
        // Places of images could not be moved.
        let shift = work.shift.filter(|_| work.images.is_empty());
        let room = match shift {
            Some(_) => context_length.saturating_mul(LONGEST_SHIFTED),
            None => context_length.saturating_sub(work.prompt.len()),
        };
        let thinking = work.thinking.map(|plan| ThinkingState::new(plan, &work.prompt, vocabulary));
        let text = TextStream::new(Arc::clone(vocabulary), &work.prompt, work.stop);
        let text = match work.calls {
            Some((parser, markers)) => text.with_calls(parser, &markers),
            None => text,
        };
        let text = if work.spelled_thoughts { text.with_spelled_thoughts() } else { text };
        Self {
            id,
            reply,
            max_tokens: work.max_tokens.unwrap_or(room).min(room),
            context_length,
            shift,
            ignore_eos: work.ignore_eos,
            logprobs: work.logprobs,
            prompt_logprobs: work.prompt_logprobs,
            progress: work.progress,
            sampler: Sampler::new(work.sampling, &work.prompt, work.choice),
            text,
            thinking,
            channels: work.channels.map(ChannelState::new),
            // Log-probabilities of a prompt need every row to be computed.
            cache: work.cache.filter(|_| !work.prompt_logprobs).map(|salt| match &work.adapter {
                Some(adapter) => salt.of_adapter(adapter.id()),
                None => salt,
            }),
            adapter: work.adapter,
            // The mask of the first token is computed while the prompt waits and is evaluated.
            constraint: work.grammar.map(Constraint::begin),
            prompt: work.prompt,
            submitted: Instant::now(),
            priority: work.priority,
        }
    }

    /// Reports the progress of its prompt, where that is asked for and the prompt is not done.
    pub(super) fn report(&mut self, progress: SequenceEvent, prompt_done: Option<Instant>) {
        if self.progress && prompt_done.is_none() {
            self.reply.send(progress);
        }
    }

    pub(super) fn fail(&mut self, error: WorkError) {
        self.reply.send(SequenceEvent::Failed(error));
    }

    /// The token that comes next whatever the model would say: thoughts end when their budget is used up.
    pub(super) fn forced(&self) -> Option<u32> {
        let channels = || self.channels.as_ref()?.forced(self.text.is_in_thought());
        self.thinking.as_ref().and_then(|thinking| thinking.thoughts.forced()).or_else(channels)
    }

    /// The tokens that may come next; `None` as long as that is being computed.
    pub(super) fn allowed(&mut self) -> Option<Result<Allowed, WorkError>> {
        Allowed::of(self.constraint.as_mut(), self.thinking.as_ref().map(|thinking| &thinking.thoughts))
    }
}
