//! The facts that spans show.

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderMap, Method};

/// The head of a request, as it came through the door.
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a Method,
    /// The path of the route, with names in place of ids.
    pub route: &'static str,
    /// The public id of the request.
    pub id: &'a str,
    /// The headers, with the client's trace context.
    pub headers: &'a HeaderMap,
}

/// The wishes of a request, once its body was read.
pub struct AskedFacts<'a> {
    /// The path of the route in OpenAI's API.
    pub path: &'static str,
    /// The name in the request, or of the first model that may answer.
    pub model: &'a str,
    /// The client.
    pub client: &'a str,
    /// The priority, if the request or its task states one.
    pub priority: Option<u8>,
    /// Whether the answer is to be streamed.
    pub is_stream: bool,
}

/// The place that is to answer, and the way to it.
pub struct PlaceFacts {
    /// The name of the model that answers.
    pub model: String,
    /// The provider in OpenTelemetry's names; this project's for its own workers.
    pub provider: Cow<'static, str>,
    /// Whether it is a worker of this machine.
    pub is_local: bool,
    /// The devices of the worker.
    pub devices: String,
    /// The priority after the limits of the client.
    pub priority: Option<u8>,
    /// The position of the rung in the request's ladder, from 0.
    pub rung: i64,
    /// The reason for the rung.
    pub rung_reason: String,
    /// The part of the wait that was a load.
    pub loading: Duration,
}

/// The figures of an answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerFacts {
    /// The tokens of the prompt and of the answer, if the answer counted them.
    pub tokens: Option<(u64, u64)>,
    /// Those of the prompt that were cached.
    pub cached: Option<u64>,
    /// The times that the worker measured for reading the prompt and for writing the answer.
    pub worked: Option<(Duration, Duration)>,
    /// The time since the first byte of a stream.
    pub since_first_byte: Option<Duration>,
}
