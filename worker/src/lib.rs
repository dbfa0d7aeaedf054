//! The worker: the process that serves one loaded model over local HTTP.
//!
//! Owns the process shell: the gate and the lifeline on standard input, the engine's thread, the HTTP API, exit codes.
//! Knows no candle: the binary passes a [`WorkerBackend`] in. Knows no other model and schedules nothing.

mod about;
mod adapters;
mod allocator;
mod args;
mod backend;
mod by_hand;
mod command_line;
mod commands;
mod cpu_share;
mod defaults;
mod draft;
mod encoding;
mod engine_thread;
mod failure;
mod forms;
mod gate;
mod gone;
mod hearing;
mod http;
mod meter;
mod metrics;
mod model_files;
mod painting;
mod parking;
mod process;
mod speaking;
mod state;
mod stream_stats;
pub mod terminal;
mod text;
mod threads;

pub use args::{Convert, Index, LayerOrder, StoredType, Synth};
pub use backend::{
    ChooseInstructions, LoadDecoder, LoadEncoder, LoadPainter, LoadReranker, LoadSpeaker, LoadSpeech, ModelLoaders,
    Reranker, WorkerBackend, WriteFile,
};
pub use failure::LoadFailure;
pub use process::run;
