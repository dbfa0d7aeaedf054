//! Quantised matrices that candle's kernels multiply in their stored form, on devices without kernels of this crate.
//! The module has the list of block types that those kernels support.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{DType, Device, DeviceLocation, Result, Tensor, bail};
use model_boss_kernels::MatrixLayout;
use model_boss_weights::gguf::TensorType;

use crate::device;

/// Elements of memory after the last row, because kernels read whole tiles.
const BEHIND: u64 = 512;

/// The most rows that candle multiplies one by one, on a GPU. More have other memory.
const ROWS_BY_VECTORS: usize = 8;
/// Rows of a product up to which candle's memory stays where it is: a piece of a prompt and what is decoded beside it.
pub(crate) const SETTLED_ROWS: usize = 1536;

/// A matrix `[outs, depth]` in blocks, on any device.
#[derive(Clone)]
pub(crate) struct DeviceBlocks(Arc<QTensor>);

impl DeviceBlocks {
    /// Copies a file's checked bytes to a device.
    pub(crate) fn place(layout: MatrixLayout, bytes: &[u8], device: &Device) -> Result<Self> {
        let Some(kind) = kind(layout.kind) else { bail!("no product for {}", layout.kind) };
        let [outs, depth] = layout.shape;
        if let Some(blocks) = device::upload_blocks(bytes, outs * depth, kind, device)? {
            return Self::over(blocks, layout);
        }
        // candle casts the bytes to blocks without a copy, which needs an alignment that files do not have.
        let bytes: Cow<'_, [u8]> =
            if bytes.as_ptr().addr().is_multiple_of(8) { bytes.into() } else { bytes.to_vec().into() };
        Self::over(QStorage::from_data(bytes, device, kind)?, layout)
    }

    /// A matrix over memory that contains the blocks, or will contain them before it is used.
    pub(crate) fn over(storage: QStorage, layout: MatrixLayout) -> Result<Self> {
        let [outs, depth] = layout.shape;
        let tensor = QTensor::new(storage, (outs, depth))?;
        settle(&tensor.device(), depth)?;
        Ok(Self(Arc::new(tensor)))
    }

    /// The tensor with the blocks.
    #[cfg(feature = "cuda")]
    pub(crate) fn tensor(&self) -> &QTensor {
        &self.0
    }

    /// The product `x Wᵀ`, in the type of `x`: `[rows, depth]` → `[rows, outs]`.
    pub(crate) fn product(&self, x: &Tensor) -> Result<Tensor> {
        x.apply_op1_no_bwd(self.0.as_ref())
    }

    /// The rows with these numbers, as a tensor: `[numbers, depth]`.
    pub(crate) fn rows(&self, numbers: &Tensor, dtype: DType) -> Result<Tensor> {
        self.0.embedding(numbers)?.to_dtype(dtype)
    }
}

/// The deepest matrix on each device.
fn settled() -> MutexGuard<'static, Vec<(DeviceLocation, usize)>> {
    static SETTLED: Mutex<Vec<(DeviceLocation, usize)>> = Mutex::new(Vec::new());
    SETTLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets candle take the memory on a GPU that its products of rows of this depth work in, which it keeps. Recorded
/// steps have its address, so it must not move when a step has more rows.
fn settle(device: &Device, depth: usize) -> Result<()> {
    if !device.is_cuda() {
        return Ok(());
    }
    let (mut settled, here) = (settled(), device.location());
    if settled.iter().any(|(on, deepest)| *on == here && *deepest >= depth) {
        return Ok(());
    }
    let kind = GgmlDType::Q8_0;
    let zeros = QStorage::from_data(vec![0; depth / kind.block_size() * kind.type_size()].into(), device, kind)?;
    let matrix = QTensor::new(zeros, (1, depth))?;
    for rows in [ROWS_BY_VECTORS, SETTLED_ROWS] {
        Tensor::zeros((rows, depth), DType::F32, device)?.apply_op1_no_bwd(&matrix)?;
    }
    settled.retain(|(on, _)| *on != here);
    settled.push((here, depth));
    Ok(())
}

/// candle's name of a block type, if candle has every kernel for it.
pub(crate) fn kind(stored: TensorType) -> Option<GgmlDType> {
    Some(match stored {
        TensorType::Q4_0 => GgmlDType::Q4_0,
        TensorType::Q4_1 => GgmlDType::Q4_1,
        TensorType::Q5_0 => GgmlDType::Q5_0,
        TensorType::Q5_1 => GgmlDType::Q5_1,
        TensorType::Q8_0 => GgmlDType::Q8_0,
        TensorType::Q2_K => GgmlDType::Q2K,
        TensorType::Q3_K => GgmlDType::Q3K,
        TensorType::Q4_K => GgmlDType::Q4K,
        TensorType::Q5_K => GgmlDType::Q5K,
        TensorType::Q6_K => GgmlDType::Q6K,
        _ => return None,
    })
}

/// Bytes that a matrix in blocks needs on a device.
pub(crate) fn bytes(stored: TensorType, elements: u64) -> Option<u64> {
    kind(stored)?;
    stored.bytes_of(elements.saturating_add(BEHIND))
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use candle_core::quantized::QTensor;

    use super::*;

    /// The test runs on the CPU, for which candle has kernels too. Their products are compared with those of this
    /// crate.
    #[test]
    fn rs_8_blocks_are_computed_with_as_they_are_stored() {
        let (outs, depth) = (48, 512);
        let values: Vec<f32> = (0..outs * depth).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
        let dense = Tensor::from_vec(values, (outs, depth), &Device::Cpu).unwrap();
        let x = Tensor::arange(0f32, (3 * depth) as f32, &Device::Cpu).unwrap();
        let x = ((x / 700.0).unwrap() - 1.0).unwrap().reshape((3, depth)).unwrap();
        for stored in [TensorType::Q4_0, TensorType::Q5_1, TensorType::Q8_0, TensorType::Q4_K, TensorType::Q6_K] {
            let quantised = QTensor::quantize(&dense, kind(stored).unwrap()).unwrap();
            let file = quantised.data().unwrap().into_owned();
            let mut askew = vec![0];
            askew.extend(&file);
            let layout = MatrixLayout { kind: stored, shape: [outs, depth] };
            let ours = layout.copied(&file, BytesMut::zeroed(file.len())).unwrap();
            let numbers = Tensor::new(&[5u32, 0], &Device::Cpu).unwrap();
            for bytes in [&file[..], &askew[1..]] {
                let blocks = DeviceBlocks::place(layout, bytes, &Device::Cpu).unwrap();
                let rows = blocks.rows(&numbers, DType::F32).unwrap().flatten_all().unwrap();
                let expected = ours.rows(&[5, 0]);
                assert_eq!(rows.to_vec1::<f32>().unwrap(), expected, "{stored}");
                let y = blocks.product(&x).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
                let x = x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                let other = ours.product(&x, 3);
                let apart = y.iter().zip(&other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                // Both kernels round activations to eight bits, by different rules.
                assert!(apart < 0.4, "{stored}: {apart}");
            }
            assert!(bytes(stored, (outs * depth) as u64).unwrap() > file.len() as u64);
        }
        assert!(kind(TensorType::IQ4_XS).is_none() && bytes(TensorType::F16, 512).is_none());
    }
}
