//! Callers of the coordinator: an HTTP client, the bodies of its lease API, and the holder of `lease run`.

mod http;
pub mod lease_http;
pub mod lease_run;

pub use http::{Client, ClientError, Events, StreamLine, error_in, in_path};
