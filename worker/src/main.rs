//! The binary: the worker's shell with candle's decoders in it. The one place where the two meet.

mod candle_threads;
mod files;

use std::process::ExitCode;

use model_boss_candle::{DecoderLoadOptions, DeviceOptions, EncoderTask};
use model_boss_engine::residency::plan::ResidencyOptions;
use model_boss_engine::speech::SpeechModel;
use model_boss_engine::{Decoder, Painter, Speaker, TextEncoder};
use model_boss_protocol::{
    ByteCount, Category, DeviceId, InstructionSet, InstructionSetError, ResidencyMode, StoreKind, WorkerSpec,
};
use model_boss_weights::store::WeightStoreChoice;
use model_boss_worker::{LoadFailure, ModelLoaders, Reranker, WorkerBackend};

fn main() -> ExitCode {
    candle_threads::leave_out();
    model_boss_worker::run(WorkerBackend {
        instructions: Box::new(choose_instructions),
        cuda: model_boss_candle::built_for_cuda(),
        load: ModelLoaders {
            decoder: Box::new(load),
            draft: Box::new(load),
            encoder: Box::new(load_embedder),
            reranker: Box::new(load_reranker),
            towers: Box::new(load_towers),
            speaker: Box::new(load_speaker),
            painter: Box::new(load_painter),
            speech: Box::new(load_speech),
        },
        convert: Box::new(files::convert),
        index: Box::new(files::index),
        synth: Box::new(files::synth),
    })
}

fn choose_instructions(set: Option<InstructionSet>) -> Result<InstructionSet, InstructionSetError> {
    set.map_or_else(|| Ok(model_boss_kernels::current_instructions()), model_boss_kernels::choose_instructions)
}

fn load(spec: &WorkerSpec, progress: &mut dyn FnMut(f32)) -> Result<Box<dyn Decoder>, LoadFailure> {
    model_boss_candle::load_over(&spec.source, &places(spec), &decoder_options(spec), progress)
        .map_err(|error| LoadFailure::new(error.exit(), &error))
}

fn decoder_options(spec: &WorkerSpec) -> DecoderLoadOptions {
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
    // A model that gives vectors or scores keeps nothing of a text: it has room for one of the greatest length.
    let sequences = if spec.category == Category::Llm { spec.max_concurrent } else { 1 };
    DecoderLoadOptions {
        context_length: spec.context_length,
        max_concurrent: Some(sequences),
        host_memory: Some(spec.host_bytes()).filter(|bytes| *bytes > ByteCount::ZERO),
        residency,
        store,
        kv_cache_type: spec.residency.kv_cache_type,
        ..DecoderLoadOptions::default()
    }
}

fn load_embedder(spec: &WorkerSpec, progress: &mut dyn FnMut(f32)) -> Result<Box<dyn TextEncoder>, LoadFailure> {
    if model_boss_candle::is_encoder(&spec.source) {
        return load_encoder(spec, EncoderTask::Vectors, progress);
    }
    model_boss_candle::load_decoder_embedder(&spec.source, &places(spec), &decoder_options(spec), progress)
        .map_err(|error| LoadFailure::new(error.exit(), &error))
}

fn load_reranker(spec: &WorkerSpec, progress: &mut dyn FnMut(f32)) -> Result<Reranker, LoadFailure> {
    if model_boss_candle::is_encoder(&spec.source) {
        load_encoder(spec, EncoderTask::Labels, progress).map(Reranker::Encoder)
    } else {
        let judge = model_boss_candle::decoder_judge(&spec.source);
        let judge = judge.map_err(|error| LoadFailure::new(error.exit(), &error))?;
        load(spec, progress).map(|decoder| Reranker::Decoder(decoder, judge.map(Box::new)))
    }
}

fn load_encoder(
    spec: &WorkerSpec,
    task: EncoderTask,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn TextEncoder>, LoadFailure> {
    model_boss_candle::load_encoder(&spec.source, &first_device(spec), task, progress)
        .map_err(|error| LoadFailure::new(error.exit(), &error))
}

fn load_towers(spec: &WorkerSpec, progress: &mut dyn FnMut(f32)) -> Result<Box<dyn TextEncoder>, LoadFailure> {
    model_boss_candle::load_towers(&spec.source, &first_device(spec), progress)
        .map_err(|error| LoadFailure::new(error.exit(), &error))
}

fn load_speaker(spec: &WorkerSpec, progress: &mut dyn FnMut(f32)) -> Result<Box<dyn Speaker>, LoadFailure> {
    model_boss_candle::load_speaker(&spec.source, &first_device(spec), progress)
        .map_err(|error| LoadFailure::new(error.exit(), &error))
}

fn load_painter(spec: &WorkerSpec, progress: &mut dyn FnMut(f32)) -> Result<Box<dyn Painter>, LoadFailure> {
    model_boss_candle::load_painter(&spec.source, &first_device(spec), progress)
        .map_err(|error| LoadFailure::new(error.exit(), &error))
}

fn load_speech(spec: &WorkerSpec, progress: &mut dyn FnMut(f32)) -> Result<Box<dyn SpeechModel>, LoadFailure> {
    let windows = usize::try_from(spec.max_concurrent).unwrap_or(1);
    let kept = spec.residency.kv_cache_type;
    model_boss_candle::load_speech(&spec.source, &first_device(spec), windows, kept, progress)
        .map_err(|error| LoadFailure::new(error.exit(), &error))
}

/// An encoder is small: it is on the first of its devices as a whole.
fn first_device(spec: &WorkerSpec) -> DeviceId {
    spec.places().into_iter().next().map_or_else(|| spec.device.clone(), |(device, _)| device)
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
