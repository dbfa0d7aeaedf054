//! The parts of an adapter in the decoder's memory, by the names of the decoder's parts.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::matrix::Matrix;

/// An adapter of one decoder.
pub(crate) struct DecoderAdapter {
    /// The number of the decoder that it was made for.
    pub(crate) of: u64,
    /// By the path of the matrix, without `.weight`.
    pub(crate) parts: HashMap<String, AdapterPart>,
}

/// An adapter's tensors in place of a matrix, or beside it. Tensors are made in the host's memory, and are moved to the
/// matrix's device when they are first used: by the one thread that computes there.
pub(crate) struct AdapterPart(Mutex<PartTensors>);

/// The tensors of a part, all on one device.
#[derive(Clone)]
pub(crate) enum PartTensors {
    /// Beside a projection.
    LowRank(LowRank),
    /// Beside an embedding: rows are looked up in the first tensor.
    Rows(LowRank),
    /// In place of a matrix.
    Whole(Tensor),
}

/// Two narrow matrices whose product is added to a matrix.
#[derive(Clone)]
pub(crate) struct LowRank {
    /// `[rank, in]`; of an embedding `[tokens, rank]`.
    pub(crate) down: Tensor,
    /// `[out, rank]`
    pub(crate) up: Tensor,
    pub(crate) scale: f64,
    /// The factor on each result, that of the matrix included (DoRA: Liu et al., 2024, arXiv 2402.09353), `[out]`.
    pub(crate) magnitude: Option<Tensor>,
    /// Added to the product before its scale, `[out]`.
    pub(crate) bias: Option<Tensor>,
}

impl AdapterPart {
    pub(crate) fn new(tensors: PartTensors) -> Self {
        Self(Mutex::new(tensors))
    }

    /// The tensors on a device, in the type that it computes in.
    pub(crate) fn on(&self, device: &Device, dtype: DType) -> Result<PartTensors> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !held.first().device().same_device(device) {
            *held = held.moved(device, dtype)?;
        }
        Ok(held.clone())
    }
}

impl PartTensors {
    fn first(&self) -> &Tensor {
        match self {
            Self::LowRank(low) | Self::Rows(low) => &low.down,
            Self::Whole(weight) => weight,
        }
    }

    fn moved(&self, device: &Device, dtype: DType) -> Result<Self> {
        let moved = |tensor: &Tensor| tensor.to_dtype(dtype)?.to_device(device);
        let low = |low: &LowRank| {
            Ok::<_, candle_core::Error>(LowRank {
                down: moved(&low.down)?,
                up: moved(&low.up)?,
                scale: low.scale,
                magnitude: low.magnitude.as_ref().map(moved).transpose()?,
                bias: low.bias.as_ref().map(moved).transpose()?,
            })
        };
        Ok(match self {
            Self::LowRank(of) => Self::LowRank(low(of)?),
            Self::Rows(of) => Self::Rows(low(of)?),
            Self::Whole(weight) => Self::Whole(moved(weight)?),
        })
    }

    /// Elements of all tensors.
    pub(crate) fn elements(&self) -> usize {
        match self {
            Self::LowRank(low) | Self::Rows(low) => {
                let beside = [&low.magnitude, &low.bias].into_iter().flatten().map(Tensor::elem_count).sum::<usize>();
                low.down.elem_count() + low.up.elem_count() + beside
            }
            Self::Whole(weight) => weight.elem_count(),
        }
    }

    /// A projection's results with the part: of rows `x`, `[rows, in]`, that gave `y` with this bias.
    pub(crate) fn projected(&self, x: &Tensor, y: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        match self {
            Self::LowRank(low) => {
                let narrow = product(&x.to_dtype(low.down.dtype())?, &low.down)?;
                low.onto(&narrow, y, bias)
            }
            Self::Whole(weight) => {
                let whole = product(&x.to_dtype(weight.dtype())?, weight)?.to_dtype(y.dtype())?;
                bias.map_or(Ok(whole.clone()), |bias| whole.broadcast_add(bias))
            }
            Self::Rows(_) => bail!("an adapter of an embedding stands beside a projection"),
        }
    }

    /// Rows of an embedding with the part: `y` are those of the tokens without it.
    pub(crate) fn looked_up(&self, tokens: &Tensor, y: &Tensor) -> Result<Tensor> {
        match self {
            Self::Rows(low) => low.onto(&low.down.index_select(tokens, 0)?, y, None),
            Self::Whole(weight) => weight.index_select(tokens, 0)?.to_dtype(y.dtype()),
            Self::LowRank(_) => bail!("an adapter of a projection stands beside an embedding"),
        }
    }
}

impl LowRank {
    /// Results with the product of the narrow rows, `[rows, rank]`.
    fn onto(&self, narrow: &Tensor, y: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let mut wide = product(narrow, &self.up)?;
        if let Some(own) = &self.bias {
            wide = wide.broadcast_add(own)?;
        }
        let added = if self.scale == 1.0 { wide } else { (wide * self.scale)? }.to_dtype(y.dtype())?;
        let Some(magnitude) = &self.magnitude else { return y + added };
        // Biases have no magnitude.
        let magnitude = magnitude.to_dtype(y.dtype())?;
        match bias {
            Some(bias) => ((y.broadcast_sub(bias)? + added)?.broadcast_mul(&magnitude)?).broadcast_add(bias),
            None => (y + added)?.broadcast_mul(&magnitude),
        }
    }
}

/// The product `x Wᵀ`, of which each row's result is the same whatever rows are beside it on the CPU.
fn product(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    Matrix::Tensor(weight.clone()).product(&x.contiguous()?)
}
