//! From a model's files to a decoder that runs. Knows the order of things: configuration, headers, shapes, memory,
//! weights; and which failure is whose fault.

use std::path::{Path, PathBuf};

use model_boss_engine::{Decoder, DecoderError, DecoderInfo};
use model_boss_protocol::{ByteCount, DeviceId, WorkerExit};
use model_boss_weights::WeightsError;
use model_boss_weights::gguf::{GgufModelError, TensorType};

use crate::config::ConfigError;
use crate::decoder::{Ends, SpecDecoder};
use crate::files::Files;
use crate::gguf::GgufSpecError;
use crate::layer::Layer;
use crate::linear::Linear;
use crate::norm::RmsNorm;
use crate::reader::{Reader, Target};
use crate::source::Resident;
use crate::spec::DecoderSpec;
use crate::tensors::{EMBEDDING, FINAL_NORM, HEAD, Needed};
use crate::{device, kv};

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
    let name = device;
    let device = device::open(name)?;
    let bad = |reason: ModelError| LoadError::BadModel { model: source.to_owned(), reason: Box::new(reason) };
    let (files, spec) = Files::open(source).map_err(bad)?;
    let plan = Plan::new(&spec, &files).map_err(bad)?;

    let target = Target { dtype: device::compute_type(&device, &plan.matrices), device };
    let needs = plan.bytes(&spec, &files, &target).map_err(bad)?;
    if let Some(free) = device::free_memory(&target.device).filter(|free| needs > *free) {
        return Err(LoadError::OutOfMemory { needs: ByteCount(needs), free: ByteCount(free) });
    }
    progress(0.0);
    let mut reader = Reader::new(&files, &target, needs, progress);
    let decoder = plan.read(&mut reader, spec, &target, context_length).map_err(|reason| match reason {
        // Somebody else was quicker.
        ModelError::Device(DecoderError::OutOfMemory(_)) => {
            let free = ByteCount(device::free_memory(&target.device).unwrap_or(0));
            LoadError::OutOfMemory { needs: ByteCount(needs), free }
        }
        ModelError::Device(error) => LoadError::DeviceLost { device: name.clone(), why: error.to_string() },
        reason => bad(reason),
    })?;
    Ok(Box::new(decoder))
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
    #[error("out of memory: the weights take {needs}, {free} are free")]
    OutOfMemory {
        /// Bytes of the weights once loaded.
        needs: ByteCount,
        /// Bytes that were to be had.
        free: ByteCount,
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
            Self::BadModel { .. } => WorkerExit::BadModel,
            Self::OutOfMemory { .. } => WorkerExit::OutOfMemory,
            Self::DeviceLost { .. } => WorkerExit::DeviceLost,
        }
    }
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
struct Plan {
    embedding: &'static str,
    /// `None`: the embedding is the head.
    head: Option<&'static str>,
    /// How each matrix is stored.
    matrices: Vec<TensorType>,
}

impl Plan {
    fn new(spec: &DecoderSpec, files: &Files) -> Result<Self, ModelError> {
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

    /// Bytes that the weights take on the device.
    fn bytes(&self, spec: &DecoderSpec, files: &Files, target: &Target) -> Result<u64, ModelError> {
        self.needed(spec)
            .try_fold(0u64, |total, needed| Ok(total.saturating_add(target.bytes(&files.get(&needed.name)?))))
    }

    fn read(
        &self,
        reader: &mut Reader<'_>,
        spec: DecoderSpec,
        target: &Target,
        context_length: Option<u64>,
    ) -> Result<SpecDecoder<Resident>, ModelError> {
        let embedding = reader.matrix(self.embedding)?;
        let layers = (0..spec.layers).map(|index| Layer::read(reader, &spec, index)).collect::<Result<_, _>>()?;
        let norm = RmsNorm::read(reader, FINAL_NORM, spec.norm_eps)?;
        let head = match self.head {
            Some(name) => reader.matrix(name)?,
            None => embedding.clone(),
        };
        let wanted = context_length.and_then(|tokens| usize::try_from(tokens).ok()).unwrap_or(usize::MAX);
        let info = DecoderInfo {
            vocab_size: spec.vocab,
            context_length: wanted.clamp(1, spec.max_positions),
            kv_bytes_per_token: kv::bytes_per_token(&spec, reader.dtype()),
            weight_bytes: reader.bytes(),
        };
        let ends = Ends { embedding, norm, head: Linear::new(head) };
        Ok(SpecDecoder::new(info, spec, target.device.clone(), ends, Resident::new(layers)))
    }
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
