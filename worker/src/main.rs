//! The binary: the worker's shell with candle's decoders in it. The one place where the two meet.

mod files;

use std::process::ExitCode;

use model_boss_engine::Decoder;
use model_boss_protocol::WorkerSpec;
use model_boss_worker::{Backend, LoadFailure};

fn main() -> ExitCode {
    model_boss_worker::run(Backend {
        load: Box::new(load),
        convert: Box::new(files::convert),
        synth: Box::new(files::synth),
    })
}

fn load(spec: &WorkerSpec, progress: &mut dyn FnMut(f32)) -> Result<Box<dyn Decoder>, LoadFailure> {
    model_boss_candle::load(&spec.source, &spec.device, spec.context_length, progress)
        .map_err(|error| LoadFailure::new(error.exit(), &error))
}
