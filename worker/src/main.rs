//! The binary: the worker's shell with candle's decoders in it. The one place where the two meet.

mod files;

use std::process::ExitCode;

use model_boss_candle::LoadOptions;
use model_boss_engine::Decoder;
use model_boss_engine::residency::plan::{Mode, Wish};
use model_boss_protocol::{Generation, ResidencyMode, WorkerSpec};
use model_boss_worker::{Backend, LoadFailure};

fn main() -> ExitCode {
    model_boss_worker::run(Backend {
        load: Box::new(load),
        convert: Box::new(files::convert),
        index: Box::new(files::index),
        synth: Box::new(files::synth),
    })
}

fn load(spec: &WorkerSpec, progress: &mut dyn FnMut(f32)) -> Result<Box<dyn Decoder>, LoadFailure> {
    let size = |count: Option<u32>| count.and_then(|count| usize::try_from(count).ok());
    let residency = Wish {
        mode: match spec.residency.mode {
            ResidencyMode::Auto => Mode::Auto,
            ResidencyMode::Resident => Mode::Resident,
            ResidencyMode::Stream => Mode::Stream,
        },
        window: size(spec.residency.window),
        block: size(spec.residency.block),
    };
    // A lease is an estimate as long as nobody has loaded the model; what is streamed can be cut to fit it.
    let streams = spec.residency.mode == ResidencyMode::Stream || spec.generation == Generation(0);
    let memory = spec.parts.first().filter(|_| streams).map(|(_, bytes)| *bytes);
    let options = LoadOptions {
        context_length: spec.context_length,
        max_concurrent: Some(spec.max_concurrent),
        memory,
        residency,
    };
    model_boss_candle::load_with(&spec.source, &spec.device, &options, progress)
        .map_err(|error| LoadFailure::new(error.exit(), &error))
}
