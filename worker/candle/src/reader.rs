//! From stored tensors to weights that compute: converts where it has to, reports progress. Knows types and shapes, no
//! architecture.
//!
//! On the CPU matrices stay as they are stored ([`MatrixKernel`]), f32 ones are tensors; what is added or multiplied
//! element by element is f32. On a GPU activations are of one type ([`crate::device::target`]) and so is every matrix of
//! floats; those in blocks stay so ([`crate::blocks`]), but for types that no kernel there knows, which become floats.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};
use model_boss_engine::DecoderError;
use model_boss_weights::gguf::{TensorType, dequantise};

use crate::blocks::{self, Blocks};
use crate::device;
use crate::feed::{Arrived, Intake};
use crate::files::{Files, Stored};
use crate::halves::{Halves, are_finite};
use crate::layout::MatrixLayout;
use crate::load::ModelError;
use crate::matrix::{Matrix, MatrixKernel};
use crate::quantised::Quantised;
use crate::room::Room;

/// Where weights go and what they become there.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) device: Device,
    /// Of tensors.
    pub(crate) dtype: DType,
    /// Of keys and values.
    pub(crate) cached: DType,
}

impl Target {
    /// Bytes that a tensor takes there.
    pub(crate) fn bytes(&self, stored: &Stored<'_>) -> u64 {
        match (self.stays(stored), self.blocks(stored)) {
            (Some(_), _) => stored.bytes.len() as u64,
            (_, Some(layout)) => self.matrix_bytes(&layout),
            _ => stored.elements().saturating_mul(self.dtype.size_in_bytes() as u64),
        }
    }

    /// Bytes that a matrix takes there if it stays as it is stored.
    pub(crate) fn matrix_bytes(&self, layout: &MatrixLayout) -> u64 {
        let elements = layout.shape.iter().product::<usize>() as u64;
        let blocks = if self.device.is_cpu() { None } else { blocks::bytes(layout.kind, elements) };
        blocks.or(layout.kind.bytes_of(elements)).unwrap_or(u64::MAX)
    }

    /// Bytes of the copy that each product makes of such a matrix, where it is stored in floats of another type than those it
    /// meets.
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn converted_bytes(&self, layout: &MatrixLayout) -> u64 {
        let other = !self.device.is_cpu() && dtype_of(layout.kind).is_some_and(|stored| stored != self.dtype);
        let values = layout.shape.iter().product::<usize>() as u64;
        if other { values.saturating_mul(self.dtype.size_in_bytes() as u64) } else { 0 }
    }

    /// Whether it computes with matrices of that type as they are stored.
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn computes_stored(&self, kind: TensorType) -> bool {
        self.device.is_cpu() || dtype_of(kind).is_some() || blocks::kind(kind).is_some()
    }

    /// A matrix in blocks that stays so on a device with memory of its own.
    fn blocks(&self, stored: &Stored<'_>) -> Option<MatrixLayout> {
        let shape = <[usize; 2]>::try_from(stored.shape).ok()?;
        let stays = self.device.is_cuda() && blocks::kind(stored.kind).is_some();
        stays.then_some(MatrixLayout { kind: stored.kind, shape })
    }

    /// The shape of a matrix that is computed with as it is stored.
    pub(crate) fn stays(&self, stored: &Stored<'_>) -> Option<[usize; 2]> {
        let shape = <[usize; 2]>::try_from(stored.shape).ok()?;
        (self.device.is_cpu() && stored.kind != TensorType::F32).then_some(shape)
    }
}

/// Gives a model's parts by the names of safetensors.
pub(crate) trait Parts {
    /// The matrix of that name.
    fn matrix(&mut self, name: &str) -> Result<Matrix, ModelError>;

    /// A factor that all elements of that matrix are still to be multiplied with.
    fn factor(&self, _name: &str) -> Option<f64> {
        None
    }

    /// The tensor of that name, in its stored shape.
    fn tensor(&mut self, name: &str) -> Result<Tensor, ModelError>;
}

/// Reads tensors of one model, one after the other.
pub(crate) struct Reader<'a> {
    files: &'a Files,
    target: &'a Target,
    expected: u64,
    bytes: u64,
    /// For matrices that the host computes with.
    room: Room,
    /// What is read past the page cache.
    intake: Option<Intake<'a>>,
    progress: &'a mut dyn FnMut(f32),
}

impl<'a> Reader<'a> {
    /// `expected` is the number of bytes that weights will take in all.
    pub(crate) fn new(files: &'a Files, target: &'a Target, expected: u64, progress: &'a mut dyn FnMut(f32)) -> Self {
        Self { files, target, expected, bytes: 0, room: Room::new(expected), intake: None, progress }
    }

    /// What is read past the page cache it takes from there.
    pub(crate) fn taking(self, intake: Option<Intake<'a>>) -> Self {
        Self { intake, ..self }
    }

    /// From now on it reads for another device.
    pub(crate) fn turn_to(&mut self, target: &'a Target) {
        self.target = target;
    }

    /// What it reads from.
    pub(crate) fn files(&self) -> &'a Files {
        self.files
    }

    /// Bytes on all devices of what was read so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts what was read.
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

impl Parts for Reader<'_> {
    fn matrix(&mut self, name: &str) -> Result<Matrix, ModelError> {
        let stored = self.files.get(name)?;
        if let Some(layout) = self.target.blocks(&stored) {
            layout.check(stored.bytes).map_err(|what| self.bad(name, what))?;
            let blocks = Blocks::place(layout, stored.bytes, &self.target.device);
            let blocks = blocks.map_err(|error| self.not_placed(name, &error))?;
            self.took(self.target.matrix_bytes(&layout));
            return Ok(Matrix::Blocks(blocks));
        }
        let Some(shape) = self.target.stays(&stored) else {
            return self.tensor(name).map(Matrix::Tensor);
        };
        if let Some(Arrived::Matrix(matrix)) = self.arrived(name)? {
            self.took(stored.bytes.len() as u64);
            return Ok(matrix);
        }
        let room = self.room.take(stored.bytes.len());
        let kernel: Result<Arc<dyn MatrixKernel>, String> = match stored.kind {
            TensorType::F16 => Halves::<f16>::copied(shape, stored.bytes, room).map(|halves| Arc::new(halves) as _),
            TensorType::BF16 => Halves::<bf16>::copied(shape, stored.bytes, room).map(|halves| Arc::new(halves) as _),
            kind => Quantised::copied(kind, shape, stored.bytes, room).map(|blocks| Arc::new(blocks) as _),
        };
        let kernel = kernel.map_err(|what| self.bad(name, what))?;
        self.took(kernel.bytes());
        Ok(Matrix::Stored(kernel))
    }

    fn tensor(&mut self, name: &str) -> Result<Tensor, ModelError> {
        let mut stored = self.files.get(name)?;
        let arrived = self.arrived(name)?;
        if let Some(Arrived::Bytes(bytes)) = &arrived {
            stored.bytes = bytes;
        }
        let Target { device, dtype, .. } = self.target;
        let not_finite = || self.bad(name, "holds NaN or infinity".to_owned());
        let placed = if dtype_of(stored.kind) == Some(*dtype) && *dtype != DType::F32 {
            let finite = match stored.kind {
                TensorType::F16 => are_finite::<f16>(stored.bytes),
                _ => are_finite::<bf16>(stored.bytes),
            };
            if !finite {
                return Err(not_finite());
            }
            Tensor::from_raw_buffer(stored.bytes, *dtype, stored.shape, device)
        } else {
            let mut values = vec![0.0; stored.shape.iter().product()];
            dequantise(stored.kind, stored.bytes, &mut values).map_err(|error| self.bad(name, error.to_string()))?;
            if !values.iter().all(|value| value.is_finite()) {
                return Err(not_finite());
            }
            // Converted before it is copied, so that the device never holds it twice.
            Tensor::from_vec(values, stored.shape, &Device::Cpu)
                .and_then(|tensor| tensor.to_dtype(*dtype)?.to_device(device))
        };
        let tensor = placed.map_err(|error| self.not_placed(name, &error))?;
        self.took(tensor.elem_count() as u64 * dtype.size_in_bytes() as u64);
        Ok(tensor)
    }
}

/// candle's name of a type that tensors can have.
fn dtype_of(stored: TensorType) -> Option<DType> {
    match stored {
        TensorType::F32 => Some(DType::F32),
        TensorType::F16 => Some(DType::F16),
        TensorType::BF16 => Some(DType::BF16),
        _ => None,
    }
}
