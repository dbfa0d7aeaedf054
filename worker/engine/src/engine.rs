//! The engine contract: the requests of the process shell to an engine, and the events it gets back. Devices are not
//! known here.

use std::sync::Arc;
use std::time::Duration;

use model_boss_images::SightFacts;
use model_boss_protocol::Priority;

use crate::adapter::LoadedAdapter;
use crate::constraint::{CompiledGrammar, ConstraintError};
use crate::images::PromptImage;
use crate::kv::CacheSalt;
use crate::sampling::{SamplingParams, TokenLogprob};
use crate::text::{ChannelPlan, ThinkingPlan};
use crate::tools::{ToolMarkers, ToolParser};

/// One sequence inside one engine, chosen by the caller and never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// Works on many sequences at once. Owned by one OS thread; only [`Engine::step`] blocks.
pub trait Engine: Send {
    /// The facts that do not change.
    fn info(&self) -> &EngineInfo;

    /// Accepts work. All events about it, refusal included, go to `reply`.
    fn submit(&mut self, id: SequenceId, work: Work, reply: Box<dyn Reply>);

    /// Forgets a sequence, wherever it is. No event follows. Unknown ids are ignored.
    fn cancel(&mut self, id: SequenceId);

    /// Does one step of the batch. Sequences whose reply is closed are dropped first.
    ///
    /// # Errors
    /// Only when the process cannot go on; every sequence has then been told.
    fn step(&mut self) -> Result<Progress, EngineError>;
}

/// Facts about an engine that do not change.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineInfo {
    /// Longest prompt plus answer, in tokens: the model's or the setting's limit, or the memory's for keys and values.
    pub context_length: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Bytes of weights held.
    pub weight_bytes: u64,
    /// Bytes that a step takes on each device beside weights, keys and values, at most.
    pub workspace_bytes: u64,
    /// Bytes of keys and values for one token of one sequence.
    pub kv_bytes_per_token: usize,
    /// The most tokens that keys and values are held of, over all sequences; none without a limit.
    pub kv_tokens: Option<usize>,
    /// Sequences worked on at once.
    pub max_concurrent: usize,
    /// How the model gets images; none for a model that reads text only.
    pub sight: Option<Arc<SightFacts>>,
}

/// Work for an engine. The enum is closed, so a new modality shows every place to extend as a compiler error.
#[derive(Clone, Debug)]
pub enum Work {
    /// Text in, text out.
    Generate(Generate),
}

/// One sequence to continue.
#[derive(Clone, Debug)]
pub struct Generate {
    /// The prompt. Never empty.
    pub prompt: Arc<[u32]>,
    /// Images that take places in the prompt, in their order and apart from each other.
    pub images: Arc<[PromptImage]>,
    /// The most tokens that are sampled; the rest of the context when absent. Zero only evaluates the prompt.
    pub max_tokens: Option<usize>,
    /// The choice of tokens.
    pub sampling: SamplingParams,
    /// The number of this answer among several to one prompt: the same seed gives each its own stream of random
    /// numbers.
    pub choice: u64,
    /// Texts that end the answer; they are not part of it. Thoughts are not searched for them.
    pub stop: Vec<String>,
    /// Go on behind the model's own end of text.
    pub ignore_eos: bool,
    /// Report the log-probability of each token, with this many of the most likely ones beside it.
    pub logprobs: Option<usize>,
    /// Report log-probabilities of the prompt's tokens too.
    pub prompt_logprobs: bool,
    /// Report how much of the prompt is evaluated: before the first step, and behind each.
    pub progress: bool,
    /// The plan to separate thinking from the answer, and to end it when its budget is used up.
    pub thinking: Option<ThinkingPlan>,
    /// Whether the model may spell its thoughts out, between tags that are no tokens.
    pub spelled_thoughts: bool,
    /// The limit of thoughts that are told apart in the text: spelled out, or in channels.
    pub channels: Option<ChannelPlan>,
    /// Keys and values of the prompt are shared with sequences of the same salt, before and after this one. None shares
    /// nothing.
    pub cache: Option<CacheSalt>,
    /// The adapter that the sequence is computed with; the model alone without one.
    pub adapter: Option<Arc<LoadedAdapter>>,
    /// The grammar that the answer follows; thoughts before it are free.
    pub grammar: Option<CompiledGrammar>,
    /// The parser of calls in the answer, and the special tokens that it has to see.
    pub calls: Option<(ToolParser, ToolMarkers)>,
    /// The way to go on when the context is full. None ends the answer there.
    pub shift: Option<ContextShift>,
    /// The importance. More important sequences get places, blocks and steps first.
    pub priority: Priority,
}

/// Room for an answer that is longer than the context: half of the tokens behind the first `keep` are forgotten, the
/// oldest ones. The rest is evaluated again at its new places. Such an answer ends at ten times the context, as
/// Ollama's does, unless `max_tokens` is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextShift {
    /// Tokens of the prompt that stay, from the first on; at most three quarters of the context.
    pub keep: usize,
}

/// The receiver of the events of one sequence.
pub trait Reply: Send + Sync {
    /// Passes an event on without blocking.
    fn send(&mut self, event: SequenceEvent);

    /// Whether the receiver has gone. The sequence is then cancelled within one step, queued or running.
    fn is_closed(&self) -> bool;
}

/// An event of a sequence. The order is any number of `Evaluating`, `Started`, any number of `Thought` and then of
/// `Text` and `Call`, then `Finished`; or `Failed` at any time.
#[derive(Clone, Debug)]
pub enum SequenceEvent {
    /// A part of the prompt is evaluated, where the work asks for progress.
    Evaluating {
        /// Prompt tokens whose keys and values were already there.
        cached_tokens: usize,
        /// Prompt tokens whose keys and values are there by now; those that were cached among them.
        evaluated: usize,
    },
    /// The prompt is evaluated.
    Started {
        /// One entry per prompt token if they were requested; the first has no log-probability.
        prompt_logprobs: Vec<TokenLogprob>,
        /// Prompt tokens whose keys and values were already there.
        cached_tokens: usize,
    },
    /// More of what the model thinks before it answers. Whole characters only.
    Thought {
        /// The text, the white space around all of it left out.
        text: String,
        /// Tokens sampled so far.
        sampled: usize,
    },
    /// More of the answer. Whole characters only.
    Text {
        /// The text; may be empty when only log-probabilities come.
        text: String,
        /// The tokens this text is made of, when asked for.
        logprobs: Vec<TokenLogprob>,
        /// Tokens sampled so far.
        sampled: usize,
    },
    /// More of a call of a tool.
    Call {
        /// The call's number in the answer.
        index: usize,
        /// The tool's name, in the first event of the call.
        name: Option<String>,
        /// The next piece of the arguments, which are JSON.
        arguments: String,
        /// Tokens sampled so far.
        sampled: usize,
    },
    /// The sequence ended.
    Finished(Finished),
    /// The work failed.
    Failed(WorkError),
}

/// The end of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The reason of the end.
    pub reason: FinishReason,
    /// The stop string that ended it, if one did.
    pub stop: Option<String>,
    /// The tokens that were counted.
    pub usage: TokenUsage,
    /// The times that it took.
    pub timings: SequenceTimings,
}

/// The reason why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its text, or a stop string came.
    Stop,
    /// `max_tokens` or the context is used up.
    Length,
}

impl FinishReason {
    /// The name in OpenAI's API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// Tokens of one sequence.
///
/// `completion_tokens` counts every sampled token, since each cost a step of the decoder. That includes the
/// end-of-sequence token, although it has no text. The counts of llama-server (`n_decoded`) and vLLM
/// (`len(token_ids)`) are the same, so figures can be compared. A `finish_reason` of `length` always comes with
/// exactly `max_tokens`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Tokens of the prompt as the decoder saw it.
    pub prompt_tokens: usize,
    /// Tokens sampled.
    pub completion_tokens: usize,
    /// Prompt tokens whose keys and values were already there.
    pub cached_tokens: usize,
    /// Sampled tokens that were thoughts.
    pub thought_tokens: usize,
    /// Tokens that were evaluated in advance, because they probably came next.
    pub drafted_tokens: usize,
    /// Those of them that did.
    pub accepted_tokens: usize,
}

/// Time spent on one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceTimings {
    /// Between submission and admission into the batch.
    pub queued: Duration,
    /// Between admission and the end of the prompt.
    pub prompt: Duration,
    /// Between the end of the prompt and the last token.
    pub predicted: Duration,
}

/// The reason why one sequence failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkError {
    /// No room for the answer behind the prompt.
    #[error(
        "This model's maximum context length is {context} tokens. However, the prompt has {prompt} tokens; shorten it, or use \
         a model with a longer context"
    )]
    ContextLengthExceeded {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// A prompt of no tokens.
    #[error("the prompt is empty; the model needs at least one token")]
    EmptyPrompt,
    /// Images in places that are not there, or for a model that does not see.
    #[error("the images have no places in the prompt")]
    MisplacedImages,
    /// A token id outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab_size} tokens")]
    UnknownToken {
        /// The token's id.
        token: u32,
        /// Ids are below this.
        vocab_size: usize,
    },
    /// There is not enough device memory even without other sequences.
    #[error("not enough memory for the keys and values of this request: {0}")]
    OutOfMemory(String),
    /// Too many sequences wait already.
    #[error("{0} sequences already wait for this model; try again later")]
    QueueFull(usize),
    /// The computation failed.
    #[error("the computation failed: {0}")]
    Step(String),
    /// The answer's grammar became too large.
    #[error(transparent)]
    Form(#[from] ConstraintError),
    /// The model's output is no distribution.
    #[error("the model gave no finite logit; its weights or its settings are broken")]
    NotFinite,
}

/// The engine cannot go on, and the process has to end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The device is gone.
    #[error("the device failed for good: {0}")]
    DeviceLost(String),
}

/// Whether another step makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A step was done.
    Stepped,
    /// There is no work until a request is submitted.
    Idle,
}
