//! The model that answers a request, in the answer's headers.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use model_boss_core::RungChoice;

/// The longest reason in a header.
const MAX_REASON: usize = 300;

const SERVED_MODEL: HeaderName = HeaderName::from_static("x-served-model");

const RUNG: HeaderName = HeaderName::from_static("x-rung");

const RUNG_REASON: HeaderName = HeaderName::from_static("x-rung-reason");

const QUEUE_MS: HeaderName = HeaderName::from_static("x-queue-ms");

const LOAD_MS: HeaderName = HeaderName::from_static("x-load-ms");

/// The model that answers a request, and how it was chosen.
pub(crate) struct Served {
    pub(super) model: String,
    pub(super) rung: RungChoice,
    pub(super) queued: Duration,
    pub(super) loading: Duration,
}

impl Served {
    /// Adds headers with the model that answers, and the reason (TR-2).
    pub(super) fn headers(&self, headers: &mut HeaderMap) {
        if let Ok(model) = HeaderValue::from_str(&self.model) {
            headers.insert(SERVED_MODEL, model);
        }
        headers.insert(RUNG, HeaderValue::from(self.rung.position));
        headers.insert(RUNG_REASON, in_a_header(&self.rung.reason.to_string()));
        headers.insert(QUEUE_MS, milliseconds(self.queued));
        headers.insert(LOAD_MS, milliseconds(self.loading));
    }
}

/// A text of the coordinator or of a worker as a header: characters that a header cannot hold become `?`, and its
/// length is limited.
fn in_a_header(words: &str) -> HeaderValue {
    let plain = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    let text: String = words.chars().map(plain).take(MAX_REASON).collect();
    HeaderValue::from_str(text.trim()).unwrap_or(HeaderValue::from_static("unknown"))
}

fn milliseconds(span: Duration) -> HeaderValue {
    HeaderValue::from(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}
