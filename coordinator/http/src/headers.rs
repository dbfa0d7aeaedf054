//! Names of headers that are read or written in more than one place.

use http::HeaderName;

/// The header with the public id of a request: after the door every request has one, and so has every answer.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What was not done of a wish about thinking.
pub const THINKING: HeaderName = HeaderName::from_static("x-thinking");
