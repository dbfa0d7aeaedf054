//! Reasons why a model could not be loaded: faults of its files, of memory or of devices.

use std::path::PathBuf;

use model_boss_engine::DecoderError;
use model_boss_engine::residency::StreamError;
use model_boss_engine::residency::plan::PlanRefusal;
use model_boss_protocol::{ByteCount, DeviceId, KvCacheType, WorkerExit};
use model_boss_weights::gguf::GgufModelError;
use model_boss_weights::quantised::QuantisedError;
use model_boss_weights::store::WeightStoreError;
use model_boss_weights::{WeightsError, is_read_failure};

use crate::spec::{ConfigJsonError, GgufSpecError};

/// The reason why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The files are missing, unreadable, malformed or of an unknown kind. Another attempt would fail too.
    #[error("the model in {} cannot be used: {reason}", model.display())]
    BadModel {
        /// The model that was to be loaded.
        model: PathBuf,
        /// The fault that was found.
        reason: Box<ModelError>,
    },
    /// The device does not have enough memory for the weights.
    #[error("out of memory: the weights take {needs}, {free} are free on {device}")]
    OutOfMemory {
        /// The device that is too small.
        device: DeviceId,
        /// Bytes of the weights once loaded.
        needs: ByteCount,
        /// Bytes that were free.
        free: ByteCount,
    },
    /// The memory that the load was given has no room for keys and values beside the weights.
    #[error(
        "out of memory: {given} on {device} are too few: the weights, a step's values, and the keys and values of only \
         {tokens} tokens take {needs}; a larger 'vram' in the manifest gives more"
    )]
    NoKeys {
        /// The device whose memory is too small.
        device: DeviceId,
        /// Bytes of a load that could answer a short prompt.
        needs: ByteCount,
        /// Bytes that the load was given: of its lease, or those that are free.
        given: ByteCount,
        /// Tokens of that prompt and its answer.
        tokens: usize,
    },
    /// The device has no memory for the slots or buffers of streamed layers.
    #[error("out of memory: layers cannot be streamed to {device}: {what}")]
    NoRoom {
        /// The device that the layers compute on.
        device: DeviceId,
        /// The memory that is missing, in words.
        what: String,
    },
    /// The memory is too small for the model, even if its layers are streamed.
    #[error("the model in {} is too large: {refusal}", model.display())]
    TooLarge {
        /// The model that was to be loaded.
        model: PathBuf,
        /// The sizes, and the part that does not fit.
        refusal: PlanRefusal,
    },
    /// The device cannot keep keys and values in the type that was chosen.
    #[error("the device {device} cannot keep keys and values so: {reason}")]
    KvType {
        /// The device.
        device: DeviceId,
        /// The type, and those that the device has.
        reason: KvTypeUnavailable,
    },
    /// The device does not exist, or cannot be used.
    #[error("cannot use the device {device}: {why}")]
    DeviceLost {
        /// The device that was named.
        device: DeviceId,
        /// The reason why the device cannot be used.
        why: String,
    },
}

impl LoadError {
    /// The exit code for the coordinator.
    pub fn exit(&self) -> WorkerExit {
        match self {
            Self::BadModel { reason, .. } if may_pass(reason) => WorkerExit::ReadFailed,
            // Another attempt would fail too, until the choice is changed.
            Self::BadModel { .. } | Self::KvType { .. } => WorkerExit::BadModel,
            Self::OutOfMemory { .. } | Self::NoKeys { .. } | Self::NoRoom { .. } | Self::TooLarge { .. } => {
                WorkerExit::OutOfMemory
            }
            Self::DeviceLost { .. } => WorkerExit::DeviceLost,
        }
    }
}

/// Whether the model may be good: a file could not be read, or was written meanwhile.
fn may_pass(reason: &ModelError) -> bool {
    let changed = matches!(
        reason,
        ModelError::Store(WeightStoreError::Changed { .. }) | ModelError::Weights(WeightsError::Changed { .. })
    );
    changed || is_read_failure(reason)
}

/// The device cannot keep keys and values in the chosen type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kv_cache_type \"{wanted}\" is not available on this device; choose {instead}")]
pub struct KvTypeUnavailable {
    /// The chosen type.
    pub wanted: KvCacheType,
    /// The types that the device has, in words.
    pub instead: &'static str,
}

/// A fault of a model's files.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// `config.json` does not exist or cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    ReadConfig {
        /// The path of `config.json`.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// `config.json` cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigJsonError),
    /// The weight files cannot be used.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A quantised matrix of the weight files cannot be used.
    #[error(transparent)]
    Quantised(#[from] QuantisedError),
    /// The GGUF file cannot be used.
    #[error(transparent)]
    GgufFile(#[from] GgufModelError),
    /// The metadata of the GGUF file cannot be used.
    #[error(transparent)]
    Gguf(#[from] GgufSpecError),
    /// The device failed while the weights were copied to it; the model may be good.
    #[error(transparent)]
    Device(DecoderError),
    /// The store cannot read a file.
    #[error(transparent)]
    Store(#[from] WeightStoreError),
    /// The model does not fit.
    #[error(transparent)]
    Refused(PlanRefusal),
    /// Streaming could not begin.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// This build cannot stream layers to the kind of the device.
    #[error(
        "this build streams layers to CPUs and NVIDIA GPUs only; `residency = \"resident\"` keeps them on the device"
    )]
    NoStreaming,
    /// A streamed layer cannot be used in products.
    #[error("layer {layer}: {what}")]
    Layer {
        /// The index of the layer.
        layer: usize,
        /// The fault, in words.
        what: String,
    },
    /// Text is asked of a model that gives vectors only.
    #[error(
        "its tokens see those behind them, so it cannot write text; as a model of category embedding it gives vectors"
    )]
    WritesNothing,
    /// One tensor has a wrong shape, type or content.
    #[error("tensor '{name}' {what}")]
    Tensor {
        /// The tensor's name.
        name: String,
        /// The fault, in words.
        what: String,
    },
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
        let read = |source| ModelError::Store(WeightStoreError::Read { path: path(), offset: 4096, source });
        // The numbers are those of EIO and ESTALE, then of ENOENT and EACCES.
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
        assert_eq!(exit(ModelError::Store(WeightStoreError::Changed { path: path() })), WorkerExit::ReadFailed);
        assert_eq!(exit(ModelError::Tensor { name: "a".into(), what: "is odd".into() }), WorkerExit::BadModel);
    }
}
