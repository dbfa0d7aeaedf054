//! Names of headers that are read or written in more than one place.

use http::{HeaderName, HeaderValue};

/// The header of a request's public id. `Door` gives one to every request that has none, and to every answer.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The public id of a request. The first layer sets it, and routes read it.
#[derive(Clone, Debug)]
pub struct RequestId(pub HeaderValue);

/// The part of a wish about thinking that the model could not follow.
pub const THINKING: HeaderName = HeaderName::from_static("x-thinking");

/// The header in which Anthropic's API tells the id of a request.
pub const ANTHROPICS_ID: HeaderName = HeaderName::from_static("request-id");
