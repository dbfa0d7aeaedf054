//! Targets of weights: a device, the type that it computes in, and the type of keys and values.

use candle_core::{DType, Device};
use model_boss_kernels::{KvElement, MatrixLayout};
use model_boss_protocol::KvCacheType;
use model_boss_weights::gguf::TensorType;

use crate::device;
use crate::device::blocks;
use crate::error::KvTypeUnavailable;
use crate::file_tensor::FileTensor;
use crate::matrix::kv_element::kv_element;

/// The device of weights, and their types on it.
#[derive(Clone, Debug)]
pub(crate) struct WeightTarget {
    pub(crate) device: Device,
    /// The type of tensors, which is the type of activations too.
    pub(crate) dtype: DType,
    /// The type of keys and values.
    pub(crate) cached: KvElement,
}

impl WeightTarget {
    /// The types of a model's weights, keys and values on a device.
    pub(crate) fn of(device: Device, matrices: &[TensorType], kv: KvCacheType) -> Result<Self, KvTypeUnavailable> {
        let dtype = compute_type(&device, matrices);
        let narrow = matrices.iter().any(|kind| *kind != TensorType::F32);
        let cached = kv_element(kv, &device, dtype, narrow)?;
        Ok(Self { device, dtype, cached })
    }

    /// Bytes that a tensor needs on this target.
    pub(crate) fn bytes(&self, stored: &FileTensor<'_>) -> u64 {
        match (self.stays(stored), self.blocks(stored)) {
            (Some(_), _) => stored.len(),
            (_, Some(layout)) => self.matrix_bytes(&layout),
            _ => stored.elements().saturating_mul(self.dtype.size_in_bytes() as u64),
        }
    }

    /// Bytes that a matrix in its stored form needs on this target.
    pub(crate) fn matrix_bytes(&self, layout: &MatrixLayout) -> u64 {
        let elements = layout.shape.iter().product::<usize>() as u64;
        let blocks = if self.device.is_cpu() { None } else { blocks::bytes(layout.kind, elements) };
        blocks.or(layout.kind.bytes_of(elements)).unwrap_or(u64::MAX)
    }

    /// Bytes of the copy that each product makes of such a matrix, if its floats have another type than the
    /// activations.
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn converted_bytes(&self, layout: &MatrixLayout) -> u64 {
        let other = !self.device.is_cpu() && dtype_of(layout.kind).is_some_and(|stored| stored != self.dtype);
        let values = layout.shape.iter().product::<usize>() as u64;
        if other { values.saturating_mul(self.dtype.size_in_bytes() as u64) } else { 0 }
    }

    /// Whether the target multiplies matrices of this type in their stored form.
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn computes_stored(&self, kind: TensorType) -> bool {
        self.device.is_cpu() || dtype_of(kind).is_some() || blocks::stays(kind)
    }

    /// The layout of a matrix in blocks that is not converted, on a device with memory of its own.
    pub(crate) fn blocks(&self, stored: &FileTensor<'_>) -> Option<MatrixLayout> {
        let shape = <[usize; 2]>::try_from(stored.shape.as_slice()).ok()?;
        let stays = self.device.is_cuda() && blocks::stays(stored.kind);
        stays.then_some(MatrixLayout { kind: stored.kind, shape })
    }

    /// The shape of a matrix that the target multiplies in its stored form.
    pub(crate) fn stays(&self, stored: &FileTensor<'_>) -> Option<[usize; 2]> {
        let shape = <[usize; 2]>::try_from(stored.shape.as_slice()).ok()?;
        (self.device.is_cpu() && stored.kind != TensorType::F32).then_some(shape)
    }
}

/// candle's name of a type that tensors can have.
pub(crate) fn dtype_of(stored: TensorType) -> Option<DType> {
    match stored {
        TensorType::F32 => Some(DType::F32),
        TensorType::F16 => Some(DType::F16),
        TensorType::BF16 => Some(DType::BF16),
        _ => None,
    }
}

/// The type that a model computes in, which is the type of its weights on the device.
///
/// On a GPU a model of 16-bit floats is not converted: it reads half the bytes per token and has the faster products.
/// Sums inside of norms and products are f32 there, softmax is computed in f32, and logits are f32. A model whose
/// matrices differ in type computes in f32. So does every model on the CPU, where matrices may keep their stored form
/// ([`model_boss_kernels`]). Beside quantised blocks a GPU computes in bf16: its rounding error is below theirs, and
/// its range is that of f32.
fn compute_type(on: &Device, matrices: &[TensorType]) -> DType {
    let is_float = |kind: &TensorType| matches!(kind, TensorType::F32 | TensorType::F16 | TensorType::BF16);
    let all = |wanted| matrices.iter().all(|kind| *kind == wanted);
    let quantised = matrices.iter().any(|kind| !is_float(kind));
    if on.is_cpu() || matrices.is_empty() {
        DType::F32
    } else if all(TensorType::F16) {
        DType::F16
    } else if (quantised || all(TensorType::BF16)) && device::has_bf16(on) {
        DType::BF16
    } else {
        DType::F32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_computes_in_f32_whatever_is_stored() {
        for stored in [TensorType::F32, TensorType::F16, TensorType::BF16, TensorType::Q4_K] {
            assert_eq!(compute_type(&Device::Cpu, &[stored, stored]), DType::F32);
        }
    }

    #[test]
    fn en_2_keys_and_values_are_rounded_where_weights_are() {
        let cached = |stored: &[TensorType]| {
            WeightTarget::of(Device::Cpu, stored, KvCacheType::Auto).map(|target| target.cached)
        };
        assert_eq!(cached(&[TensorType::F32, TensorType::F32]), Ok(KvElement::F32));
        assert_eq!(cached(&[TensorType::F32, TensorType::Q4_K]), Ok(KvElement::F16));
        assert_eq!(cached(&[TensorType::BF16]), Ok(KvElement::F16));
    }
}
