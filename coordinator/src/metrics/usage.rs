//! The usage of one request, as its answer tells it.

use std::time::Duration;

/// The tokens and times of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RequestUsage {
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) first_token: Option<Duration>,
    pub(crate) per_token: Option<Duration>,
    /// The tokens of the prompt that were cached, as far as the answer tells.
    pub(crate) cached_tokens: Option<u64>,
    /// The times that the worker measured for the prompt and for the answer.
    pub(crate) worked: Option<(Duration, Duration)>,
    /// Tokens that the worker evaluated in advance, and those of them that came.
    pub(crate) drafted_tokens: u64,
    pub(crate) accepted_tokens: u64,
}
