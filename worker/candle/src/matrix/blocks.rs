//! Quantised matrices in the memory of a GPU, as their file has them. The module has the list of block types that this
//! project's kernels multiply there.

use candle_core::{DType, Device, Result, Tensor, bail};
use model_boss_kernels::MatrixLayout;
use model_boss_weights::gguf::TensorType;

use crate::device;
use crate::device::kernels;
use crate::device::rows::Beside;

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

impl DeviceBlocks {
    /// Copies a file's checked bytes to a GPU.
    pub(crate) fn place(layout: MatrixLayout, bytes: &[u8], device: &Device) -> Result<Self> {
        let blocks = Self::zeros(layout, device)?;
        device::upload_bytes(bytes, &blocks.bytes)?;
        Ok(blocks)
    }

    /// A matrix of zeros, until its bytes are written.
    pub(crate) fn zeros(layout: MatrixLayout, device: &Device) -> Result<Self> {
        let [outs, depth] = layout.shape;
        let Some(bytes) = bytes(layout.kind, (outs * depth) as u64) else { bail!("no product for {}", layout.kind) };
        kernels::settle_blocks(outs * depth, device)?;
        Ok(Self { bytes: Tensor::zeros(bytes as usize, DType::U8, device)?, layout })
    }

    /// The product `x Wᵀ`, in the type of `x`: `[rows, depth]` → `[rows, outs]`.
    pub(crate) fn product(&self, x: &Tensor) -> Result<Tensor> {
        let few = Self::products_beside(x, &[self], &Beside::default())?;
        match few.and_then(|mut products| products.pop()) {
            Some(product) => Ok(product),
            None => kernels::block_product(x, self),
        }
    }

    /// Products of few rows, with what is done before and behind them; none where the kernel does not serve.
    pub(crate) fn products_beside(x: &Tensor, blocks: &[&Self], beside: &Beside<'_>) -> Result<Option<Vec<Tensor>>> {
        let mut products = Vec::with_capacity(blocks.len());
        let mut first = 0;
        // Matrices of one type have one launch.
        for alike in blocks.chunk_by(|one, next| one.layout.kind == next.layout.kind) {
            let end = first + alike.len();
            let biases = beside.biases.get(first..end).unwrap_or_default();
            if beside.gate.is_some() && alike.len() < blocks.len() {
                return Ok(None);
            }
            match kernels::block_products(x, alike, &Beside { biases, ..*beside })? {
                Some(of_alike) => products.extend(of_alike),
                None => return Ok(None),
            }
            first = end;
        }
        Ok(Some(products))
    }

    /// The rows with these numbers, as a tensor: `[numbers, depth]`.
    pub(crate) fn rows(&self, numbers: &Tensor, dtype: DType) -> Result<Tensor> {
        kernels::block_rows(self, numbers, dtype)
    }
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
