//! Traces of requests, as OpenTelemetry has them: the client's trace context, the spans of a request, and their export
//! to a collector. Spans have names, numbers and reasons, never a prompt or an answer.
//!
//! Without a collector a trace is one empty pointer, and nothing else is made.

mod collector;
mod context;
mod endpoint;
mod export;
mod facts;
mod names;
mod parts;
mod request_trace;
mod traces;

pub use endpoint::TraceError;
pub use export::ExportFigures;
pub use facts::{AnswerFacts, AskedFacts, PlaceFacts, RequestHead};
pub use request_trace::RequestTrace;
pub use traces::Traces;
