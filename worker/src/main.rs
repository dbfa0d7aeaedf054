//! The binary: the worker's shell with candle's decoders in it. The one place where the two meet.

use std::process::ExitCode;

use model_boss_engine::Decoder;
use model_boss_protocol::WorkerSpec;
use model_boss_worker::LoadFailure;

fn main() -> ExitCode {
    model_boss_worker::run(Box::new(load))
}

fn load(spec: &WorkerSpec, progress: &mut dyn FnMut(f32)) -> Result<Box<dyn Decoder>, LoadFailure> {
    model_boss_candle::load(&spec.source, &spec.device, spec.context_length, progress)
        .map_err(|error| LoadFailure::new(error.exit(), &error))
}
