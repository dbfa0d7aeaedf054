//! Reasons why a model could not be loaded: faults of its files, of memory or of devices.

use std::path::PathBuf;

use model_boss_engine::DecoderError;
use model_boss_engine::residency::StreamError;
use model_boss_engine::residency::plan::PlanRefusal;
use model_boss_protocol::{ByteCount, DeviceId, WorkerExit};
use model_boss_weights::gguf::GgufModelError;
use model_boss_weights::store::WeightStoreError;
use model_boss_weights::{WeightsError, is_read_failure};

use crate::spec::{ConfigJsonError, GgufSpecError};

/// The reason why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The files are missing, unreadable, malformed or of an unknown kind. Trying again changes nothing.
    #[error("the model in {} cannot be used: {reason}", model.display())]
    BadModel {
        /// The model that was to be loaded.
        model: PathBuf,
        /// The fault that was found.
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
    /// No memory for the slots or buffers of streamed layers.
    #[error("out of memory: layers cannot be streamed to {device}: {what}")]
    NoRoom {
        /// The device that they compute on.
        device: DeviceId,
        /// The memory that is missing, in words.
        what: String,
    },
    /// Not enough memory, not even for some layers at a time.
    #[error("the model in {} is too large: {refusal}", model.display())]
    TooLarge {
        /// The model that was to be loaded.
        model: PathBuf,
        /// The numbers.
        refusal: PlanRefusal,
    },
    /// The device is not there.
    #[error("cannot use the device {device}: {why}")]
    DeviceLost {
        /// The device that was asked for.
        device: DeviceId,
        /// The reason why it cannot be used.
        why: String,
    },
}

impl LoadError {
    /// The exit code for the coordinator.
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
        ModelError::Store(WeightStoreError::Changed { .. }) | ModelError::Weights(WeightsError::Changed { .. })
    );
    changed || is_read_failure(reason)
}

/// A fault of a model's files.
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
    Config(#[from] ConfigJsonError),
    /// The weight files cannot be used.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The GGUF file cannot be used.
    #[error(transparent)]
    GgufFile(#[from] GgufModelError),
    /// The metadata of the GGUF file cannot be used.
    #[error(transparent)]
    Gguf(#[from] GgufSpecError),
    /// The device failed while it took the weights; the model may be good.
    #[error(transparent)]
    Device(DecoderError),
    /// A file cannot be read piece by piece.
    #[error(transparent)]
    Store(#[from] WeightStoreError),
    /// The model does not fit.
    #[error(transparent)]
    Refused(PlanRefusal),
    /// Streaming could not begin.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// No way to stream to this kind of device.
    #[error(
        "this build streams layers to CPUs and NVIDIA GPUs only; `residency = \"resident\"` keeps them on the device"
    )]
    NoStreaming,
    /// A streamed layer cannot be computed with.
    #[error("layer {layer}: {what}")]
    Layer {
        /// The index of the layer.
        layer: usize,
        /// The fault, in words.
        what: String,
    },
    /// A single tensor does not fit.
    #[error("tensor '{name}' {what}")]
    Tensor {
        /// Its name.
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
        assert_eq!(exit(ModelError::Store(WeightStoreError::Changed { path: path() })), WorkerExit::ReadFailed);
        assert_eq!(exit(ModelError::Tensor { name: "a".into(), what: "is odd".into() }), WorkerExit::BadModel);
    }
}
