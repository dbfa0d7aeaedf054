//! The headers of answers that tell of their requests.

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use model_boss_http::headers::REQUEST_ID;

const UNKNOWN_FIELDS: HeaderName = HeaderName::from_static("x-unknown-fields");

const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The facts about a request in its answer's headers.
pub(super) struct Marks {
    pub(super) request_id: HeaderValue,
    pub(super) unknown: Option<HeaderValue>,
}

impl Marks {
    pub(super) fn headers(&self, headers: &mut HeaderMap) {
        headers.insert(REQUEST_ID, self.request_id.clone());
        if let Some(unknown) = &self.unknown {
            headers.insert(UNKNOWN_FIELDS, unknown.clone());
        }
    }

    pub(super) fn stream_headers(&self, headers: &mut HeaderMap) {
        self.headers(headers);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        piece_headers(headers);
    }
}

/// The headers of an answer that comes in pieces: nothing on the way keeps it or waits for its end.
pub(super) fn piece_headers(headers: &mut HeaderMap) {
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
}
