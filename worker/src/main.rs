//! The binary: the worker's shell with candle's decoders in it. The one place where the two meet.

mod files;

use std::process::ExitCode;

use model_boss_candle::{DecoderLoadOptions, DeviceOptions};
use model_boss_engine::residency::plan::ResidencyOptions;
use model_boss_engine::{Decoder, TextEncoder};
use model_boss_protocol::{
    ByteCount, DeviceId, InstructionSet, InstructionSetError, ResidencyMode, StoreKind, WorkerSpec,
};
use model_boss_weights::store::WeightStoreChoice;
use model_boss_worker::{LoadFailure, ModelLoaders, WorkerBackend};

fn main() -> ExitCode {
    model_boss_worker::run(WorkerBackend {
        instructions: Box::new(choose_instructions),
        load: ModelLoaders { decoder: Box::new(load), encoder: Box::new(load_encoder) },
        convert: Box::new(files::convert),
        index: Box::new(files::index),
        synth: Box::new(files::synth),
    })
}

fn choose_instructions(set: Option<InstructionSet>) -> Result<InstructionSet, InstructionSetError> {
    set.map_or_else(|| Ok(model_boss_kernels::current_instructions()), model_boss_kernels::choose_instructions)
}

fn load(spec: &WorkerSpec, progress: &mut dyn FnMut(f32)) -> Result<Box<dyn Decoder>, LoadFailure> {
    let size = |count: Option<u32>| count.and_then(|count| usize::try_from(count).ok());
    let residency = ResidencyOptions {
        mode: spec.residency.mode,
        window: size(spec.residency.window),
        block: size(spec.residency.block),
    };
    let store = match spec.residency.store.unwrap_or_default() {
        StoreKind::Auto => WeightStoreChoice::Auto,
        StoreKind::Direct => WeightStoreChoice::Direct,
        StoreKind::Map => WeightStoreChoice::Map,
        StoreKind::Memory => WeightStoreChoice::Memory,
    };
    let options = DecoderLoadOptions {
        context_length: spec.context_length,
        max_concurrent: Some(spec.max_concurrent),
        host_memory: Some(spec.host_bytes()).filter(|bytes| *bytes > ByteCount::ZERO),
        residency,
        store,
        kv_cache_type: spec.residency.kv_cache_type,
        ..DecoderLoadOptions::default()
    };
    model_boss_candle::load_over(&spec.source, &places(spec), &options, progress)
        .map_err(|error| LoadFailure::new(error.exit(), &error))
}

fn load_encoder(spec: &WorkerSpec, progress: &mut dyn FnMut(f32)) -> Result<Box<dyn TextEncoder>, LoadFailure> {
    // An encoder is small: it is on the first of its devices as a whole.
    let device = spec.places().into_iter().next().map_or_else(|| spec.device.clone(), |(device, _)| device);
    model_boss_candle::load_encoder(&spec.source, &device, progress)
        .map_err(|error| LoadFailure::new(error.exit(), &error))
}

/// The devices that layers go to. A lease is an estimate until the model was loaded once, so it sets the proportion in
/// which devices are used. It is a limit only for streamed models, which can be cut to fit it.
fn places(spec: &WorkerSpec) -> Vec<DeviceOptions> {
    let firm = spec.residency.mode == ResidencyMode::Stream || spec.by_hand();
    let place = |(device, share): (DeviceId, Option<ByteCount>)| {
        let limit = share.filter(|_| firm);
        DeviceOptions { device, share, limit }
    };
    spec.places().into_iter().map(place).collect()
}
