//! A weight matrix and its two uses in a decoder: multiplying rows by it, and looking up its rows. The module chooses
//! the place of the computation and not its method.
//!
//! Matrices that share an input are multiplied with it in one call, so that it is rounded once for all of them. A
//! thread that has finished one matrix continues with the next and does not wait for others.

pub(crate) mod blocks;
pub(crate) mod kv_element;
pub(crate) mod target;
pub(crate) mod tensor_products;

use std::sync::Arc;

use bytes::BytesMut;
use candle_core::{DType, Result, Storage, Tensor, bail};
use model_boss_kernels::{
    MatrixKernel, MatrixLayout, ProductInput, StoredFloats, WORTH_SHARING, cores, in_panels, panels_of,
};
use model_boss_weights::gguf::TensorType;
use rayon::prelude::*;

use crate::device::blocks::DeviceBlocks;
use crate::device::kernels;
use crate::device::rows::Beside;
use target::WeightTarget;
use tensor_products::{ByKernel, RowsByRows, contiguous};

/// A weight `[out, in]`.
#[derive(Clone)]
pub(crate) enum Matrix {
    /// A tensor on any device, in the type that the device computes in.
    Tensor(Tensor),
    /// A matrix in the host's memory, in its stored form.
    Stored(Arc<dyn MatrixKernel>),
    /// A matrix of blocks in their stored form, on a device with memory of its own.
    Blocks(DeviceBlocks),
}

impl Matrix {
    /// The same in panels, which are faster for many rows, where it is a matrix of floats in the host's memory. Its
    /// sums have another order.
    pub(crate) fn in_panels(self) -> Result<Self> {
        Ok(match &self {
            Self::Stored(kernel) => in_panels(kernel.as_ref()).map_or(self, Self::Stored),
            Self::Tensor(weight) if weight.device().is_cpu() && weight.dtype() == DType::F32 => {
                let (storage, layout) = weight.storage_and_layout();
                let Storage::Cpu(storage) = &*storage else { bail!("the matrix is not in the host's memory") };
                let shape = layout.shape().dims2()?;
                Self::Stored(panels_of(contiguous(storage, layout)?, shape.into()))
            }
            Self::Tensor(_) | Self::Blocks(_) => self,
        })
    }

    /// The same with memory of its own: matrices of floats share one piece when they are read, which stays as long as
    /// any of them does.
    pub(crate) fn apart(self) -> Result<Self> {
        let Self::Stored(kernel) = &self else { return Ok(self) };
        let (kind, bytes) = match kernel.floats() {
            Some(StoredFloats::F32(bytes)) => (TensorType::F32, bytes),
            Some(StoredFloats::F16(bytes)) => (TensorType::F16, bytes),
            Some(StoredFloats::Bf16(bytes)) => (TensorType::BF16, bytes),
            None => return Ok(self),
        };
        let layout = MatrixLayout { kind, shape: [kernel.outs(), kernel.depth()] };
        let copy = layout.copied(bytes, BytesMut::zeroed(bytes.len()));
        copy.map(Self::Stored).map_err(candle_core::Error::msg)
    }

    /// The results for each row.
    pub(crate) fn outs(&self) -> Result<usize> {
        match self {
            Self::Tensor(weight) => weight.dim(0),
            Self::Stored(kernel) => Ok(kernel.outs()),
            Self::Blocks(blocks) => Ok(blocks.layout.shape[0]),
        }
    }

    /// The product `x Wᵀ`: `[rows, in]` → `[rows, out]`.
    pub(crate) fn product(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Tensor(weight) if x.device().is_cpu() => x.apply_op2_no_bwd(weight, &RowsByRows),
            // Weights in their stored form may have another type than the activations.
            Self::Tensor(weight) if weight.dtype() != x.dtype() => x.matmul(&weight.to_dtype(x.dtype())?.t()?),
            Self::Tensor(weight) => {
                match kernels::products(x, &[weight], &Beside::default())?.and_then(|mut products| products.pop()) {
                    Some(product) => Ok(product),
                    None => x.matmul(&weight.t()?),
                }
            }
            Self::Blocks(blocks) => blocks.product(x),
            Self::Stored(kernel) => x.apply_op1_no_bwd(&ByKernel(kernel.as_ref())),
        }
    }

    /// The products `x Wᵀ` for several matrices. Each result equals that of [`Self::product`], to the bit.
    pub(crate) fn products<const N: usize>(x: &Tensor, matrices: [&Self; N]) -> Result<[Tensor; N]> {
        if let Some(products) = Self::products_beside(x, &matrices, &Beside::default())? {
            return all_of(products);
        }
        let kernels = matrices.iter().filter_map(|matrix| match matrix {
            Self::Stored(kernel) => Some(kernel.as_ref()),
            _ => None,
        });
        let kernels: Vec<&dyn MatrixKernel> = kernels.collect();
        let products = if kernels.len() == N {
            products(x, &kernels, &vec![None; N])?
        } else {
            matrices.iter().map(|matrix| matrix.product(x)).collect::<Result<_>>()?
        };
        all_of(products)
    }

    /// The same on biases `[out]`, in one pass. The answer is none unless all matrices are in the host's memory and all
    /// numbers f32.
    pub(crate) fn products_onto(x: &Tensor, all: &[(&Self, Option<&Tensor>)]) -> Result<Option<Vec<Tensor>>> {
        let mut kernels: Vec<&dyn MatrixKernel> = Vec::with_capacity(all.len());
        for (matrix, bias) in all {
            let Self::Stored(kernel) = matrix else { return Ok(None) };
            if [Some(x), *bias].into_iter().flatten().any(|x| x.dtype() != DType::F32 || !x.device().is_cpu()) {
                return Ok(None);
            }
            kernels.push(kernel.as_ref());
        }
        let stored: Vec<_> = all.iter().map(|(_, bias)| bias.map(Tensor::storage_and_layout)).collect();
        let mut biases = Vec::with_capacity(all.len());
        for (bias, kernel) in stored.iter().zip(&kernels) {
            let Some((storage, layout)) = bias else {
                biases.push(None);
                continue;
            };
            let Storage::Cpu(storage) = &**storage else { return Ok(None) };
            let bias = contiguous(storage, layout)?;
            if bias.len() != kernel.outs() {
                bail!("a bias of {} numbers cannot be added to {} results", bias.len(), kernel.outs());
            }
            biases.push(Some(bias));
        }
        products(x, &kernels, &biases).map(Some)
    }

    /// Products of few rows on a GPU, with what is done before and behind them; none where its kernel does not serve.
    pub(crate) fn products_beside(x: &Tensor, matrices: &[&Self], beside: &Beside<'_>) -> Result<Option<Vec<Tensor>>> {
        if !x.device().is_cuda() {
            return Ok(None);
        }
        let blocks = matrices.iter().map(|matrix| match matrix {
            Self::Blocks(blocks) => Some(blocks),
            _ => None,
        });
        if let Some(blocks) = blocks.collect::<Option<Vec<_>>>() {
            return DeviceBlocks::products_beside(x, &blocks, beside);
        }
        let tensors = matrices.iter().map(|matrix| match matrix {
            Self::Tensor(weight) => Some(weight),
            _ => None,
        });
        match tensors.collect::<Option<Vec<&Tensor>>>() {
            Some(tensors) => kernels::products(x, &tensors, beside),
            None => Ok(None),
        }
    }

    /// The rows with these numbers, `[numbers, in]`, in the target's type and on its device.
    pub(crate) fn rows(&self, numbers: &[u32], target: &WeightTarget) -> Result<Tensor> {
        let device = &target.device;
        match self {
            Self::Tensor(_) | Self::Blocks(_) => {
                self.rows_at(&Tensor::from_vec(numbers.to_vec(), numbers.len(), device)?, target)
            }
            Self::Stored(kernel) => {
                let values = kernel.rows(numbers);
                let width = values.len() / numbers.len().max(1);
                Tensor::from_vec(values, (numbers.len(), width), device)
            }
        }
    }

    /// The same, of numbers on the target's device. The matrix is there too.
    pub(crate) fn rows_at(&self, numbers: &Tensor, target: &WeightTarget) -> Result<Tensor> {
        match self {
            Self::Tensor(weight) => weight.index_select(numbers, 0),
            Self::Blocks(blocks) => blocks.rows(numbers, target.dtype),
            Self::Stored(_) => bail!("the matrix is in the host's memory"),
        }
    }
}

/// As many tensors as there have to be.
pub(crate) fn all_of<const N: usize>(products: Vec<Tensor>) -> Result<[Tensor; N]> {
    match <[Tensor; N]>::try_from(products) {
        Ok(products) => Ok(products),
        Err(products) => bail!("{N} matrices gave {} products", products.len()),
    }
}

fn products(x: &Tensor, kernels: &[&dyn MatrixKernel], biases: &[Option<&[f32]>]) -> Result<Vec<Tensor>> {
    let (rows, _) = x.dims2()?;
    let (storage, layout) = x.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { bail!("matrices in the host's memory need rows that lie there too") };
    let input = ProductInput::new(contiguous(storage, layout)?, rows, kernels.iter().any(|kernel| kernel.rounds()));
    let product = |(kernel, bias): (&&dyn MatrixKernel, &Option<&[f32]>)| match bias {
        Some(bias) => kernel.multiply_onto(&input, bias),
        None => kernel.multiply(&input),
    };
    let work: usize = kernels.iter().map(|kernel| rows * kernel.outs() * kernel.depth()).sum();
    let products: Vec<Vec<f32>> = if work < WORTH_SHARING || cores() == 1 {
        kernels.iter().zip(biases).map(product).collect()
    } else {
        kernels.par_iter().zip(biases).with_max_len(1).map(product).collect()
    };
    let tensor = |(y, kernel): (Vec<f32>, &&dyn MatrixKernel)| Tensor::from_vec(y, (rows, kernel.outs()), x.device());
    products.into_iter().zip(kernels).map(tensor).collect()
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn matrices_that_share_an_input_give_what_each_gives_alone_to_the_bit() {
        // Only the first matrix is large enough for several threads, and the last is not in tiles.
        let shapes = [(TensorType::Q4_K, 1_040), (TensorType::F32, 9), (TensorType::Q6_K, 48), (TensorType::Q5_0, 7)];
        let matrices = shapes.map(|(kind, outs)| {
            let bytes = kind.bytes_of(outs * 512).unwrap();
            let mut blocks: Vec<u8> = (0..bytes).map(|i| (i * 37 % 251) as u8 & 0x3B).collect();
            let layout = MatrixLayout { kind, shape: [outs as usize, 512] };
            layout.arrange(&mut blocks);
            Matrix::Stored(layout.kernel(blocks.into()).unwrap())
        });
        for rows in [1, 3, 8] {
            let x = Tensor::rand(-1.0_f32, 1.0, (rows, 512), &Device::Cpu).unwrap();
            let together = Matrix::products(&x, matrices.each_ref()).unwrap();
            for (matrix, y) in matrices.iter().zip(together) {
                let alone = matrix.product(&x).unwrap();
                assert_eq!(y.to_vec2::<f32>().unwrap(), alone.to_vec2::<f32>().unwrap(), "{rows} rows");
            }
        }
    }
}
