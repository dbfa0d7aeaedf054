//! The worker: the process that serves one loaded model over local HTTP.
//!
//! Owns the process shell: the gate and the lifeline on standard input, the engine's thread, the HTTP API, exit codes.
//! Knows no candle: whoever builds the binary hands in a [`Backend`]. Knows no other model and schedules nothing.

mod args;
mod bench;
mod by_hand;
mod defaults;
mod disk;
mod engine_thread;
mod gate;
mod http;
mod inspect;
mod metrics;
mod process;
mod residency;
mod state;
mod text;
mod text_cost;

pub use args::{Convert, Index, LayerOrder, StoredAs, Synth};
pub use process::{Backend, LoadDecoder, LoadFailure, WriteFile, run};
