//! The coordinator's HTTP: connections and their limits, request bodies within one memory budget, and pooled
//! connections to engines. Errors are written in each dialect's shape. Models and routes are not part of this crate.

pub mod accept;
pub mod bare_errors;
pub mod body;
pub mod door;
pub mod error;
pub mod form;
pub mod gathered;
pub mod headers;
pub mod json;
pub mod memory;
pub mod offload;
pub mod origin;
pub mod outbound;
pub mod path;
pub mod patience;
pub mod peek;
pub mod peer;
pub mod tls;
pub mod upstream;
