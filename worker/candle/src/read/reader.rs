//! Converting stored tensors to weights for products, and reporting the progress.
//!
//! On the CPU matrices keep their stored form ([`model_boss_kernels`]) and f32 ones are tensors; values that are added
//! or multiplied element by element are f32. On a GPU activations have one type ([`WeightTarget`]), and so has every
//! matrix of floats. Matrices in blocks keep their blocks ([`crate::device::blocks`]); types without a kernel there
//! become floats.

use std::borrow::Cow;

use candle_core::{DType, Device, Tensor};
use model_boss_engine::DecoderError;
use model_boss_kernels::{MatrixLayout, floats_are_finite};
use model_boss_weights::gguf::dequantise;
use rayon::prelude::*;

use crate::device;
use crate::device::blocks::DeviceBlocks;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::layers::named_weights::NamedWeights;
use crate::matrix::Matrix;
use crate::matrix::target::{WeightTarget, dtype_of};
use crate::read::arena::Room;
use crate::read::direct::{Arrived, Intake};

/// Bytes of floats that one core checks at a time.
const CHECKED_AT_ONCE: usize = 1 << 20;

/// The reader of a model's tensors, one after another.
pub(crate) struct WeightReader<'a> {
    files: &'a ModelFiles,
    target: &'a WeightTarget,
    expected: u64,
    bytes: u64,
    /// Memory for matrices that the host multiplies.
    room: Room,
    /// Tensors that are read past the page cache.
    intake: Option<Intake<'a>>,
    progress: &'a mut dyn FnMut(f32),
}

impl<'a> WeightReader<'a> {
    /// A reader for the first target. `expected` is the number of bytes of all weights in memory.
    pub(crate) fn new(
        files: &'a ModelFiles,
        target: &'a WeightTarget,
        expected: u64,
        progress: &'a mut dyn FnMut(f32),
    ) -> Self {
        Self { files, target, expected, bytes: 0, room: Room::new(expected), intake: None, progress }
    }

    /// Uses direct reads for the tensors that they cover.
    pub(crate) fn taking(self, intake: Option<Intake<'a>>) -> Self {
        Self { intake, ..self }
    }

    /// Sets the target of further tensors to another device.
    pub(crate) fn turn_to(&mut self, target: &'a WeightTarget) {
        self.target = target;
    }

    pub(crate) fn files(&self) -> &'a ModelFiles {
        self.files
    }

    /// Bytes on all devices of the tensors that were read.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts bytes that were read elsewhere.
    pub(crate) fn took(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        (self.progress)((self.bytes as f64 / self.expected.max(1) as f64).min(1.0) as f32);
    }

    fn arrived(&mut self, name: &str) -> Result<Option<Arrived>, ModelError> {
        self.intake.as_mut().map_or(Ok(None), |intake| intake.take(name))
    }

    fn not_placed(&self, name: &str, error: &candle_core::Error) -> ModelError {
        match device::failure(error) {
            DecoderError::Step(what) => self.bad(name, what),
            device => ModelError::Device(device),
        }
    }

    fn bad(&self, name: &str, what: String) -> ModelError {
        ModelError::Tensor { name: self.files.spelled(name).into_owned(), what }
    }
}

impl NamedWeights for WeightReader<'_> {
    fn matrix(&mut self, name: &str) -> Result<Matrix, ModelError> {
        let stored = self.files.get(name)?;
        if let Some(layout) = self.target.blocks(&stored) {
            let bytes = stored.bytes()?;
            layout.check(&bytes).map_err(|what| self.bad(name, what))?;
            let blocks = DeviceBlocks::place(layout, &bytes, &self.target.device);
            let blocks = blocks.map_err(|error| self.not_placed(name, &error))?;
            self.took(self.target.matrix_bytes(&layout));
            return Ok(Matrix::Blocks(blocks));
        }
        let Some(shape) = self.target.stays(&stored) else {
            return self.tensor(name).map(Matrix::Tensor);
        };
        if let Some(Arrived::Matrix(matrix)) = self.arrived(name)? {
            self.took(stored.len());
            return Ok(matrix);
        }
        let bytes = stored.bytes()?;
        let room = self.room.take(bytes.len());
        let layout = MatrixLayout { kind: stored.kind, shape };
        let kernel = layout.copied(&bytes, room).map_err(|what| self.bad(name, what))?;
        self.took(kernel.bytes());
        Ok(Matrix::Stored(kernel))
    }

    fn order(&self, name: &str) -> Result<Option<Tensor>, ModelError> {
        let Some(order) = self.files.order(name) else { return Ok(None) };
        let placed = Tensor::from_slice(&order, order.len(), &self.target.device);
        placed.map(Some).map_err(|error| self.not_placed(name, &error))
    }

    fn tensor(&mut self, name: &str) -> Result<Tensor, ModelError> {
        let stored = self.files.get(name)?;
        let arrived = self.arrived(name)?;
        let bytes = match &arrived {
            Some(Arrived::Bytes(bytes)) => Cow::Borrowed(&bytes[..]),
            _ => stored.bytes()?,
        };
        let WeightTarget { device, dtype, .. } = self.target;
        let not_finite = || self.bad(name, "holds NaN or infinity".to_owned());
        let placed = if dtype_of(stored.kind) == Some(*dtype) && *dtype != DType::F32 {
            // Pieces of whole elements.
            if !bytes.par_chunks(CHECKED_AT_ONCE).all(|piece| floats_are_finite(stored.kind, piece)) {
                return Err(not_finite());
            }
            device::upload(&bytes, *dtype, &stored.shape, device)
        } else {
            let mut values = vec![0.0; stored.shape.iter().product()];
            dequantise(stored.kind, &bytes, &mut values).map_err(|error| self.bad(name, error.to_string()))?;
            if !values.iter().all(|value| value.is_finite()) {
                return Err(not_finite());
            }
            // Values are converted before the copy, so that the device never holds the tensor twice.
            Tensor::from_vec(values, stored.shape.as_slice(), &Device::Cpu)
                .and_then(|tensor| tensor.to_dtype(*dtype)?.to_device(device))
        };
        let tensor = placed.map_err(|error| self.not_placed(name, &error))?;
        self.took(tensor.elem_count() as u64 * dtype.size_in_bytes() as u64);
        Ok(tensor)
    }
}
