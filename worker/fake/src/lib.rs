//! The behaviour of fake workers, for programs that control one: the data alone, without sockets and processes.

pub mod behaviour;

pub use behaviour::{Behaviour, FakeError, Malformed};
