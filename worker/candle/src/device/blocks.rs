//! The block types that this project's kernels multiply on GPUs, and matrices of them there.

use candle_core::Tensor;
use model_boss_kernels::MatrixLayout;
use model_boss_weights::gguf::TensorType;

/// Bytes of memory after the last row, because kernels read in pieces of sixteen.
const BEHIND: u64 = 64;

/// The block types, by the names that kernels have too.
pub(crate) const KINDS: [TensorType; 13] = [
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q8_0,
    TensorType::IQ4_NL,
    TensorType::MXFP4,
    TensorType::Q2_K,
    TensorType::Q3_K,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::IQ4_XS,
];

/// A matrix `[outs, depth]` in blocks, on a GPU.
#[derive(Clone)]
pub(crate) struct DeviceBlocks {
    /// The bytes, and some behind them.
    pub(crate) bytes: Tensor,
    pub(crate) layout: MatrixLayout,
}

/// Whether matrices of this type stay in their stored form on a GPU.
pub(crate) fn stays(stored: TensorType) -> bool {
    KINDS.contains(&stored)
}

/// Bytes that a matrix in blocks needs on a device; none of a type without kernels.
pub(crate) fn bytes(stored: TensorType, elements: u64) -> Option<u64> {
    stays(stored).then(|| stored.bytes_of(elements))?.map(|bytes| bytes.saturating_add(BEHIND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rs_8_types_with_kernels_stay_in_blocks() {
        assert_eq!(bytes(TensorType::Q4_K, 512), Some(2 * 144 + BEHIND));
        assert!(!stays(TensorType::IQ2_XXS) && bytes(TensorType::F16, 512).is_none());
    }
}
