//! From a model's files to a decoder that runs. Knows the order of things: configuration, headers, shapes, memory,
//! weights; and which failure is whose fault.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use model_boss_engine::residency::StreamError;
use model_boss_engine::residency::plan::{Refusal, Wish};
use model_boss_engine::{Decoder, DecoderError};
use model_boss_protocol::{ByteCount, DeviceId, WorkerExit};
use model_boss_weights::gguf::{GgufModelError, TensorType};
use model_boss_weights::store::{self, StoreChoice, StoreError, WeightStore};
use model_boss_weights::{WeightsError, is_read_failure};

use crate::ahead::{EndsWith, ReadAhead};
use crate::cache;
use crate::config::ConfigError;
use crate::feed::{Feed, Intake};
use crate::files::Files;
use crate::gguf::GgufSpecError;
use crate::linear::Linear;
use crate::matrix::Matrix;
use crate::norm::RmsNorm;
use crate::placing::Part;
use crate::reader::{Parts, Reader, Target};
use crate::spec::DecoderSpec;
use crate::tensors::{EMBEDDING, FINAL_NORM, HEAD, Needed};
use crate::{device, placing};

/// Loads a model and says how far it is, as a share from 0 to 1.
///
/// `source` is a folder with `config.json` and safetensors, a weight file in such a folder, a GGUF file (of a split model:
/// any part), or a folder with one GGUF model. `context_length` is the
/// longest sequence wanted, in tokens; the decoder serves at most what the model is made for, and all of that when it is
/// absent.
pub fn load(
    source: &Path,
    device: &DeviceId,
    context_length: Option<u64>,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn Decoder>, LoadError> {
    load_with(source, device, &LoadOptions { context_length, ..LoadOptions::default() }, progress)
}

/// What an operator can choose of a load.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// The longest sequence wanted, in tokens.
    pub context_length: Option<u64>,
    /// Sequences at once: room for their keys and values is kept when layers are streamed. One when absent.
    pub max_concurrent: Option<u32>,
    /// Bytes it may take on the device in all; what is free when absent. For [`load_with`]: places have limits of their own.
    pub memory: Option<ByteCount>,
    /// Bytes of host memory that streaming to another device may take: the buffers that layers come through, and layers
    /// that are held there and not read from disk. Buffers alone when absent.
    pub host_memory: Option<ByteCount>,
    /// Whether layers stay, and through how large a window they come if not.
    pub residency: Wish,
    /// How the bytes of layers that come and go are read.
    pub store: StoreChoice,
}

/// A device of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceOptions {
    /// Which.
    pub device: DeviceId,
    /// Its weight among several: layers are split in proportion. What is free when absent.
    pub share: Option<ByteCount>,
    /// Bytes it may take there in all; what is free when absent.
    pub limit: Option<ByteCount>,
}

/// As [`load`], for models that may be larger than the device's memory too: layers that do not fit stay on disk and are
/// pulled through a window in each step.
pub fn load_with(
    source: &Path,
    device: &DeviceId,
    options: &LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn Decoder>, LoadError> {
    let place = PlaceOptions { device: device.clone(), share: None, limit: options.memory };
    load_over(source, &[place], options, progress)
}

/// As [`load_with`], over several devices: each computes a stretch of the layers, in proportion to the bytes it has, and
/// keeps their keys and values; activations are handed on from one to the next (RC-22). Where all of them together are too
/// small, each streams what it cannot hold.
pub fn load_over(
    source: &Path,
    places: &[PlaceOptions],
    options: &LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn Decoder>, LoadError> {
    let devices: Vec<_> = places.iter().map(|place| device::open(&place.device)).collect::<Result<_, _>>()?;
    let bad = |reason: ModelError| LoadError::BadModel { model: source.to_owned(), reason: Box::new(reason) };
    let (files, spec) = Files::open(source).map_err(bad)?;
    let plan = Plan::new(&spec, &files).map_err(bad)?;
    let places = places.iter().zip(devices).map(|(place, device)| placing::Place::of(place, device, &plan.matrices));
    let parts = placing::cut(&plan, &spec, &files, places.collect(), options).map_err(bad)?;
    progress(0.0);
    let expected = parts.iter().map(|part| part.weights).sum();
    let nowhere = || LoadError::DeviceLost { device: DeviceId::Auto, why: "no device was named".to_owned() };
    let first = parts.first().ok_or_else(nowhere)?;
    let order = placing::order(&plan, &spec, &files, &parts, options).map_err(bad)?;
    let feed = match past_the_cache(&files, &parts) {
        Some(store) if !order.is_empty() => Some(Feed::new(store, &files, &first.place.target, &order).map_err(bad)?),
        _ => None,
    };
    let named = if feed.is_some() { &[] } else { order.as_slice() };
    let pieces = named.iter().map(|name| files.extent(name)).collect::<Result<_, _>>().map_err(bad)?;
    let ahead = ReadAhead::new(pieces);
    let mut progress = |share| {
        ahead.used(share);
        progress(share);
    };
    let read = thread::scope(|scope| {
        let _end = EndsWith(&ahead);
        // Without a second thread, bytes come when they are touched.
        let beside = thread::Builder::new().name("read-ahead".to_owned());
        let intake = match &feed {
            Some(feed) => {
                let (intake, sender) = Intake::new(feed);
                let _ = beside.spawn_scoped(scope, move || feed.run(&sender));
                Some(intake)
            }
            None => {
                let _ = beside.spawn_scoped(scope, || ahead.run(|piece| files.will_need(piece)));
                None
            }
        };
        let mut reader = Reader::new(&files, &first.place.target, expected, &mut progress).taking(intake);
        placing::read(&plan, spec, &mut reader, &parts, options)
    });
    let decoder = read.map_err(|(at, trouble)| {
        let device = parts.get(at).map_or(DeviceId::Auto, |part| part.place.name.clone());
        match trouble {
            placing::Trouble::TooSmall { needs, free } => {
                LoadError::OutOfMemory { device, needs: ByteCount(needs), free: ByteCount(free) }
            }
            placing::Trouble::NoRoom(what) => LoadError::NoRoom { device, what },
            placing::Trouble::Model(ModelError::Refused(refusal)) => {
                LoadError::TooLarge { model: source.to_owned(), refusal }
            }
            placing::Trouble::Model(ModelError::Device(error)) => {
                LoadError::DeviceLost { device, why: error.to_string() }
            }
            placing::Trouble::Model(reason) => bad(reason),
        }
    })?;
    if feed.is_some() {
        cache::fill(files.paths());
    }
    Ok(Box::new(decoder))
}

/// How a model is read that is not in memory: past the page cache, which would be filled with a copy while the load waits.
fn past_the_cache(files: &Files, parts: &[Part]) -> Option<Arc<dyn WeightStore>> {
    let on_cpu = matches!(parts, [part] if part.place.target.device.is_cpu());
    let cold = on_cpu && files.cached_share() < 0.5;
    // Where there are no direct reads, there is no other way than through the cache.
    if cold { store::open(&files.paths(), StoreChoice::Direct).ok() } else { None }
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The files are missing, unreadable, malformed or of an unknown kind. Trying again changes nothing.
    #[error("the model in {} cannot be used: {reason}", model.display())]
    BadModel {
        /// What was to be loaded.
        model: PathBuf,
        /// What is wrong with it.
        reason: Box<ModelError>,
    },
    /// Not enough memory for the weights.
    #[error("out of memory: the weights take {needs}, {free} are free on {device}")]
    OutOfMemory {
        /// Where.
        device: DeviceId,
        /// Bytes of the weights once loaded.
        needs: ByteCount,
        /// Bytes that were to be had.
        free: ByteCount,
    },
    /// No memory for what layers come through.
    #[error("out of memory: layers cannot be streamed to {device}: {what}")]
    NoRoom {
        /// Where they compute.
        device: DeviceId,
        /// What is missing.
        what: String,
    },
    /// Not enough memory, not even for some layers at a time.
    #[error("the model in {} is too large: {refusal}", model.display())]
    TooLarge {
        /// What was to be loaded.
        model: PathBuf,
        /// The numbers.
        refusal: Refusal,
    },
    /// The device is not there.
    #[error("cannot use the device {device}: {why}")]
    DeviceLost {
        /// What was asked for.
        device: DeviceId,
        /// Why it cannot be used.
        why: String,
    },
}

impl LoadError {
    /// The exit code that tells the coordinator.
    pub fn exit(&self) -> WorkerExit {
        match self {
            Self::BadModel { reason, .. } if may_pass(reason) => WorkerExit::ReadFailed,
            Self::BadModel { .. } => WorkerExit::BadModel,
            Self::OutOfMemory { .. } | Self::NoRoom { .. } | Self::TooLarge { .. } => WorkerExit::OutOfMemory,
            Self::DeviceLost { .. } => WorkerExit::DeviceLost,
        }
    }
}

/// Whether the files may be good: one could not be read, or was written meanwhile.
fn may_pass(reason: &ModelError) -> bool {
    let changed = matches!(
        reason,
        ModelError::Store(StoreError::Changed { .. }) | ModelError::Weights(WeightsError::Changed { .. })
    );
    changed || is_read_failure(reason)
}

/// What is wrong with a model's files.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// `config.json` is not there or cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    ReadConfig {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// `config.json` cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The weight files cannot be used.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The GGUF file cannot be used.
    #[error(transparent)]
    GgufFile(#[from] GgufModelError),
    /// What the GGUF file says cannot be used.
    #[error(transparent)]
    Gguf(#[from] GgufSpecError),
    /// The device failed while it took the weights; the model may be good.
    #[error(transparent)]
    Device(DecoderError),
    /// A file cannot be read piece by piece.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It does not fit.
    #[error(transparent)]
    Refused(Refusal),
    /// Streaming could not begin.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// No way to stream to this kind of device.
    #[error(
        "this build streams layers to CPUs and NVIDIA GPUs only; `residency = \"resident\"` keeps them on the device"
    )]
    NoStreaming,
    /// A layer that was pulled cannot be computed with.
    #[error("layer {layer}: {what}")]
    Layer {
        /// Which layer.
        layer: usize,
        /// What is wrong.
        what: String,
    },
    /// One tensor does not fit.
    #[error("tensor '{name}' {what}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong.
        what: String,
    },
}

/// What will be read, after every tensor's presence, shape and type were checked.
pub(crate) struct Plan {
    embedding: &'static str,
    /// `None`: the embedding is the head.
    head: Option<&'static str>,
    /// How each matrix is stored.
    pub(crate) matrices: Vec<TensorType>,
}

impl Plan {
    pub(crate) fn new(spec: &DecoderSpec, files: &Files) -> Result<Self, ModelError> {
        let (embedding, head) = ends(spec, files);
        let mut plan = Self { embedding, head, matrices: Vec::new() };
        let mut matrices = Vec::new();
        for needed in plan.needed(spec) {
            let stored = files.check(&needed)?;
            matrices.extend((stored.shape.len() > 1).then_some(stored.kind));
        }
        plan.matrices = matrices;
        Ok(plan)
    }

    /// Everything that is read.
    fn needed<'s>(&self, spec: &'s DecoderSpec) -> impl Iterator<Item = Needed> + use<'s> {
        let shape = spec.embedding_shape();
        let ends = std::iter::once(self.embedding).chain(self.head);
        ends.map(move |name| Needed { name: name.to_owned(), shape: shape.clone() }).chain(spec.needed())
    }

    /// The tensors outside of layers that the first device reads, or the last, or the only one.
    pub(crate) fn ends(&self, is_first: bool, is_last: bool) -> Vec<&'static str> {
        let first = is_first.then_some(self.embedding);
        // An embedding that is the head too is read once for each device.
        let last = is_last.then_some([Some(FINAL_NORM), self.head.or((!is_first).then_some(self.embedding))]);
        first.into_iter().chain(last.into_iter().flatten().flatten()).collect()
    }

    /// Bytes that one layer takes on a device.
    pub(crate) fn layer_bytes(
        &self,
        spec: &DecoderSpec,
        files: &Files,
        target: &Target,
        layer: usize,
    ) -> Result<u64, ModelError> {
        let needed = spec.needed_by_layer(layer);
        needed.iter().try_fold(0u64, |total, needed| Ok(total.saturating_add(target.bytes(&files.get(&needed.name)?))))
    }

    /// Bytes of embedding, last norm and head on a device; the head is 0 where the embedding serves for it.
    pub(crate) fn end_bytes(&self, files: &Files, target: &Target) -> Result<[u64; 3], ModelError> {
        let bytes = |name: &str| files.get(name).map(|stored| target.bytes(&stored));
        let head = self.head.map_or(Ok(0), bytes)?;
        Ok([bytes(self.embedding)?, bytes(FINAL_NORM)?, head])
    }

    /// The embedding, for the first device.
    pub(crate) fn read_embedding(&self, reader: &mut Reader<'_>) -> Result<Matrix, ModelError> {
        reader.matrix(self.embedding)
    }

    /// What stands behind the last layer. `embedding` is given where it is on the same device.
    pub(crate) fn read_head(
        &self,
        reader: &mut Reader<'_>,
        spec: &DecoderSpec,
        embedding: Option<&Matrix>,
    ) -> Result<(RmsNorm, Linear), ModelError> {
        let norm = RmsNorm::read(reader, FINAL_NORM, spec.norm_eps)?;
        let head = match (self.head, embedding) {
            (Some(name), _) => reader.matrix(name)?,
            (None, Some(embedding)) => embedding.clone(),
            (None, None) => reader.matrix(self.embedding)?,
        };
        Ok((norm, Linear::new(head)))
    }
}

/// The longest sequence that is served.
pub(crate) fn context(spec: &DecoderSpec, wanted: Option<u64>) -> usize {
    let wanted = wanted.and_then(|tokens| usize::try_from(tokens).ok()).unwrap_or(usize::MAX);
    wanted.clamp(1, spec.max_positions)
}

/// The tensors that hold embedding and head. A model that ties them may store either name, or both: then the
/// configuration is believed only if they are the same, as `transformers` does.
fn ends(spec: &DecoderSpec, files: &Files) -> (&'static str, Option<&'static str>) {
    if !spec.tied_head {
        return (EMBEDDING, Some(HEAD));
    }
    match (files.has(EMBEDDING), files.has(HEAD)) {
        (true, true) if !same(files, EMBEDDING, HEAD) => (EMBEDDING, Some(HEAD)),
        (false, true) => (HEAD, None),
        _ => (EMBEDDING, None),
    }
}

fn same(files: &Files, one: &str, other: &str) -> bool {
    match (files.get(one), files.get(other)) {
        (Ok(one), Ok(other)) => (one.kind, one.shape, one.bytes) == (other.kind, other.shape, other.bytes),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_disk_that_fails_is_no_bad_model() {
        let exit =
            |reason: ModelError| LoadError::BadModel { model: "large.gguf".into(), reason: Box::new(reason) }.exit();
        let path = || PathBuf::from("large.gguf");
        let system = io::Error::from_raw_os_error;
        let read = |source| ModelError::Store(StoreError::Read { path: path(), offset: 4096, source });
        // EIO and ESTALE, then ENOENT and EACCES.
        for (number, expected) in [
            (5, WorkerExit::ReadFailed),
            (116, WorkerExit::ReadFailed),
            (2, WorkerExit::BadModel),
            (13, WorkerExit::BadModel),
        ] {
            assert_eq!(exit(read(system(number))), expected, "{number}");
            assert_eq!(exit(ModelError::ReadConfig { path: path(), source: system(number) }), expected, "{number}");
            let weights = WeightsError::Read { path: path(), source: system(number) };
            assert_eq!(exit(ModelError::Weights(weights)), expected, "{number}");
        }
        assert_eq!(exit(read(io::Error::from(io::ErrorKind::UnexpectedEof))), WorkerExit::BadModel, "it is too short");
        assert_eq!(exit(ModelError::Store(StoreError::Changed { path: path() })), WorkerExit::ReadFailed);
        assert_eq!(exit(ModelError::Tensor { name: "a".into(), what: "is odd".into() }), WorkerExit::BadModel);
    }
}
