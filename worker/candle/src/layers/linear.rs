//! A projection: `y = f x Wᵀ + b`. Knows one matrix.

use candle_core::{DType, Result, Tensor};

use crate::error::ModelError;
use crate::layers::named_weights::NamedWeights;
use crate::matrix::Matrix;

/// A weight `[out, in]`, and maybe a factor on it and a bias `[out]`.
pub(crate) struct Linear {
    weight: Matrix,
    /// The input that belongs to each column of the weight, `[in]`, where they are not in order.
    order: Option<Tensor>,
    factor: Option<f64>,
    bias: Option<Tensor>,
}

/// Whether a projection has a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bias {
    With,
    Without,
}

impl From<bool> for Bias {
    fn from(with: bool) -> Self {
        if with { Self::With } else { Self::Without }
    }
}

impl Linear {
    /// A projection of a matrix that was read already.
    pub(crate) fn new(weight: Matrix, bias: Option<Tensor>) -> Self {
        Self { weight, order: None, factor: None, bias }
    }

    /// Reads `PATH.weight` and, with a bias, `PATH.bias`.
    pub(crate) fn read(parts: &mut dyn NamedWeights, path: &str, bias: Bias) -> std::result::Result<Self, ModelError> {
        let name = format!("{path}.weight");
        let (weight, order, factor) = (parts.matrix(&name)?, parts.order(&name)?, parts.factor(&name));
        let bias = match bias {
            Bias::With => Some(parts.tensor(&format!("{path}.bias"))?),
            Bias::Without => None,
        };
        Ok(Self { weight, order, factor, bias })
    }

    /// The same for inputs and outputs in f32.
    pub(crate) fn in_f32(self) -> Result<Self> {
        let weight = match self.weight {
            Matrix::Tensor(weight) => Matrix::Tensor(weight.to_dtype(DType::F32)?),
            stored => stored,
        };
        Ok(Self { weight, bias: self.bias.map(|bias| bias.to_dtype(DType::F32)).transpose()?, ..self })
    }

    /// `[rows, in]` → `[rows, out]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let product = match &self.order {
            Some(order) => self.weight.product(&x.index_select(order, 1)?)?,
            None => self.weight.product(x)?,
        };
        self.biased(product)
    }

    /// `[rows, in]` through several projections, to `[rows, out]` of each.
    pub(crate) fn forward_all<const N: usize>(linears: [&Self; N], x: &Tensor) -> Result<[Tensor; N]> {
        if linears.iter().any(|linear| linear.order.is_some()) {
            let products = linears.iter().map(|linear| linear.forward(x)).collect::<Result<Vec<_>>>()?;
            return <[Tensor; N]>::try_from(products).map_err(|_| candle_core::Error::msg("a product is missing"));
        }
        let mut products = Matrix::products(x, linears.map(|linear| &linear.weight))?;
        for (linear, y) in linears.into_iter().zip(&mut products) {
            *y = linear.biased(y.clone())?;
        }
        Ok(products)
    }

    fn biased(&self, y: Tensor) -> Result<Tensor> {
        let y = match self.factor {
            Some(factor) => (y * factor)?,
            None => y,
        };
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}
