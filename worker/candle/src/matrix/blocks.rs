//! Quantised matrices in the memory of a GPU, as their file has them: how they get there, and their products.

use candle_core::{DType, Device, Result, Tensor, bail};
use model_boss_kernels::MatrixLayout;

use crate::device::blocks::{DeviceBlocks, bytes};
use crate::device::rows::Beside;
use crate::device::{self, kernels};

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
