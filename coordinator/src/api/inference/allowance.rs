//! The tokens that a client may use in a day, where its profile or its key has a limit.

use std::sync::Arc;
use std::time::Duration;

use model_boss_cloud::Clouds;
use model_boss_host::clocks::unix_seconds;
use model_boss_protocol::{ApiError, ClientId, ErrorCode};
use model_boss_tasks::Resolved;

/// The length of a day of UTC, in seconds.
const DAY: u64 = 86_400;
/// Bytes of a request for each token of its prompt, where the answer ends before it has said their number.
const BYTES_PER_TOKEN: u64 = 4;

/// Counts the tokens of one request for a client with a limit.
pub(crate) struct TokenMeter {
    clouds: Arc<Clouds>,
    client: ClientId,
    /// The estimated tokens of the prompt.
    prompt: u64,
}

impl TokenMeter {
    /// The meter of a request with a body of so many bytes; `None` where the client has no limit.
    ///
    /// Errors: 429 where today's tokens are used up. Requests that run at the same time may exceed the limit by their
    /// own tokens, which nobody knows before their end.
    pub(super) fn of(
        clouds: &Arc<Clouds>,
        client: &ClientId,
        resolved: &Resolved,
        bytes: usize,
    ) -> Result<Option<Self>, ApiError> {
        let Some(limit) = resolved.profile.daily_tokens else { return Ok(None) };
        let now = unix_seconds();
        let used = clouds.tokens_today(client, now);
        if used >= limit {
            let message = format!(
                "client '{client}' has used {used} of {limit} tokens today (UTC); 'daily_tokens' of its key or in \
                 tasks.yaml say how many"
            );
            let rest = Duration::from_secs(DAY - now % DAY);
            return Err(ApiError::new(ErrorCode::ClientLimit, message).retry_after(rest));
        }
        let prompt = bytes as u64 / BYTES_PER_TOKEN;
        Ok(Some(Self { clouds: Arc::clone(clouds), client: client.clone(), prompt }))
    }

    /// Counts the tokens of the request.
    pub(super) fn count(&self, tokens: u64) {
        self.clouds.use_tokens(&self.client, tokens, unix_seconds());
    }

    /// Counts a request whose answer ended early, behind so many pieces.
    pub(super) fn count_part(&self, pieces: u64) {
        self.count(self.prompt.saturating_add(pieces));
    }
}
