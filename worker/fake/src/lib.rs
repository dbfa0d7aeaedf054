//! How a stand-in worker behaves, for whoever steers one: the data alone, no sockets and no processes.

pub mod behaviour;

pub use behaviour::{Behaviour, Malformed, Refusal};
