//! A request whose prompt becomes shorter until it fits the context of the model that serves it, for clients that ask
//! for that. Each place that the request is sent to begins with the whole prompt, since its context may be longer.

use std::borrow::Cow;

use bytes::Bytes;
use model_boss_dialects::{Overflow, RefusedPrompt, shortened};
use model_boss_http::json;
use model_boss_http::memory::Admission;
use model_boss_http::offload::offload;
use model_boss_protocol::{ApiError, ErrorCode, ErrorSource};
use serde_json::Value;

use super::forward::Forward;

/// A request to one place, in its present form.
pub(super) struct Fitting<'a> {
    request: Cow<'a, Forward>,
    /// The number of times that it became shorter.
    steps: u32,
}

impl<'a> Fitting<'a> {
    /// The request in its whole form.
    pub(super) const fn new(whole: &'a Forward) -> Self {
        Self { request: Cow::Borrowed(whole), steps: 0 }
    }

    /// The request in its present form.
    pub(super) fn request(&self) -> &Forward {
        &self.request
    }

    /// Shortens the request after this refusal. `false`: it stays as it is, and the refusal is the answer.
    pub(super) async fn shorten_after(&mut self, error: &ApiError) -> Result<bool, ApiError> {
        if !self.request.wish.shortens || error.status() != 400 {
            return Ok(false);
        }
        let body = error.body(ErrorSource::Cloud).to_json();
        self.shorten_after_answer(body.as_bytes()).await
    }

    /// The same for a refusal as it came from a worker.
    pub(super) async fn shorten_after_answer(&mut self, refusal: &[u8]) -> Result<bool, ApiError> {
        let wish = self.request.wish;
        if !wish.shortens {
            return Ok(false);
        }
        let refusal: Value = serde_json::from_slice(refusal).unwrap_or_default();
        let refused = match Overflow::of_error(&refusal) {
            Some(overflow) => RefusedPrompt::TooLong(overflow),
            None if self.steps > 0 && refusal["error"]["code"] == ErrorCode::InvalidRequest.as_str() => {
                RefusedPrompt::Otherwise
            }
            None => return Ok(false),
        };
        let (body, steps) = (self.request.body.clone(), self.steps);
        let (mut memory, limits) = (self.request.memory.holder(), self.request.limits);
        let shorter = offload(body.len(), move || {
            let document = json::object(&body, limits, &mut memory, Admission::Accepted)?;
            let shorter = shortened(document, refused, wish, steps);
            Ok::<_, ApiError>(shorter.map(|document| memory.keep(Bytes::from(Value::Object(document).to_string()))))
        });
        let Some(body) = shorter.await? else { return Ok(false) };
        tracing::info!(from = self.request.body.len(), to = body.len(), "a prompt that is too long was shortened");
        self.request = Cow::Owned(Forward { body, ..Forward::clone(&self.request) });
        self.steps += 1;
        Ok(true)
    }
}
