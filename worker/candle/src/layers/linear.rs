//! A projection: `y = f x Wᵀ + b`. Knows one matrix.

use candle_core::{DType, Result, Tensor};

use crate::adapter::rows::RowAdapters;
use crate::device::rows::{Beside, SiluForm};
use crate::error::ModelError;
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::NormedRows;
use crate::matrix::Matrix;
use crate::matrix::tensor_products::AddToRows;

/// A weight `[out, in]`, and maybe a factor on it and a bias `[out]`.
pub(crate) struct Linear {
    weight: Matrix,
    /// The input that belongs to each column of the weight, `[in]`, where they are not in order.
    order: Option<Tensor>,
    factor: Option<f64>,
    bias: Option<Tensor>,
    /// The name by which adapters know it; empty of one that takes none.
    path: Box<str>,
}

/// The result of a layer's part.
pub(crate) enum PartRows {
    /// By itself.
    Alone(Tensor),
    /// Added to the stream already.
    Added(Tensor),
}

impl PartRows {
    /// The result of a part that was given no stream.
    pub(crate) fn alone(self) -> Tensor {
        match self {
            Self::Alone(rows) | Self::Added(rows) => rows,
        }
    }
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
        Self { weight, order: None, factor: None, bias, path: Box::default() }
    }

    /// The same, known to adapters by this name.
    pub(crate) fn named(self, path: &str) -> Self {
        Self { path: path.into(), ..self }
    }

    /// Reads `PATH.weight` and, with a bias, `PATH.bias`.
    pub(crate) fn read(parts: &mut dyn NamedWeights, path: &str, bias: Bias) -> std::result::Result<Self, ModelError> {
        let name = format!("{path}.weight");
        let (weight, order, factor) = (parts.matrix(&name)?, parts.order(&name)?, parts.factor(&name));
        let bias = match bias {
            Bias::With => Some(parts.tensor(&format!("{path}.bias"))?),
            Bias::Without => None,
        };
        Ok(Self { weight, order, factor, bias, path: path.into() })
    }

    /// The results for each row.
    pub(crate) fn outs(&self) -> Result<usize> {
        self.weight.outs()
    }

    /// The same with its matrix in panels, for inputs of many rows.
    pub(crate) fn in_panels(self) -> Result<Self> {
        Ok(Self { weight: self.weight.in_panels()?, ..self })
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
        if self.bias.is_some()
            && let Some(mut products) = Self::beside(&[self], x, Beside::default())?
            && let Some(product) = products.pop()
        {
            return Ok(product);
        }
        if let Some(product) = Self::onto_biases(&[self], x)?.and_then(|mut products| products.pop()) {
            return Ok(product);
        }
        let product = match &self.order {
            Some(order) => self.weight.product(&x.index_select(order, 1)?)?,
            None => self.weight.product(x)?,
        };
        self.biased(product)
    }

    /// The same of rows with adapters.
    pub(crate) fn forward_adapted(&self, x: &Tensor, adapters: &RowAdapters) -> Result<Tensor> {
        self.adapted(x, self.forward(x)?, adapters)
    }

    /// The results with what adapters add to them.
    fn adapted(&self, x: &Tensor, y: Tensor, adapters: &RowAdapters) -> Result<Tensor> {
        if adapters.is_empty() { Ok(y) } else { adapters.project(&self.path, x, y, self.bias.as_ref()) }
    }

    /// The same, added to a stream if one is given and that takes no launch of its own.
    pub(crate) fn forward_onto(&self, x: &Tensor, stream: Option<&Tensor>, adapters: &RowAdapters) -> Result<PartRows> {
        if stream.is_some()
            && adapters.is_empty()
            && let Some(mut products) = Self::beside(&[self], x, Beside { residual: stream, ..Beside::default() })?
            && let Some(sum) = products.pop()
        {
            return Ok(PartRows::Added(sum));
        }
        self.forward_adapted(x, adapters).map(PartRows::Alone)
    }

    /// `[rows, in]` behind a norm through several projections, to `[rows, out]` of each.
    pub(crate) fn forward_normed<const N: usize>(linears: [&Self; N], x: &NormedRows<'_>) -> Result<[Tensor; N]> {
        let adapters = x.adapters();
        if adapters.is_empty()
            && let Some((x, Some(norm))) = x.before()
            && let Some(products) = Self::beside(&linears, x, Beside { norm: Some(norm), ..Beside::default() })?
        {
            return all_of(products);
        }
        let x = x.rows()?;
        let mut products = Self::forward_all(linears, &x)?;
        for (linear, y) in linears.into_iter().zip(&mut products) {
            *y = linear.adapted(&x, y.clone(), adapters)?;
        }
        Ok(products)
    }

    /// The product with a gate, `form(gate(x)) * up(x)`, in one launch; none where that is not possible.
    pub(crate) fn forward_gated(
        [gate, up]: [&Self; 2],
        x: &NormedRows<'_>,
        form: Option<SiluForm>,
    ) -> Result<Option<Tensor>> {
        if !x.adapters().is_empty() {
            return Ok(None);
        }
        let (Some(form), Some((x, norm))) = (form, x.before()) else { return Ok(None) };
        let beside = Beside { norm, gate: Some(form), ..Beside::default() };
        Ok(Self::beside(&[gate, up], x, beside)?.and_then(|mut passed| passed.pop()))
    }

    /// Products with their biases and more, in one launch; none where that is not possible.
    fn beside(linears: &[&Self], x: &Tensor, beside: Beside<'_>) -> Result<Option<Vec<Tensor>>> {
        if !x.device().is_cuda() || linears.iter().any(|linear| linear.order.is_some() || linear.factor.is_some()) {
            return Ok(None);
        }
        let matrices: Vec<&Matrix> = linears.iter().map(|linear| &linear.weight).collect();
        let biases: Vec<Option<&Tensor>> = linears.iter().map(|linear| linear.bias.as_ref()).collect();
        Matrix::products_beside(x, &matrices, &Beside { biases: &biases, ..beside })
    }

    /// `[rows, in]` through several projections, to `[rows, out]` of each.
    pub(crate) fn forward_all<const N: usize>(linears: [&Self; N], x: &Tensor) -> Result<[Tensor; N]> {
        if linears.iter().any(|linear| linear.bias.is_some())
            && let Some(products) = Self::beside(&linears, x, Beside::default())?
        {
            return all_of(products);
        }
        if linears.iter().any(|linear| linear.order.is_some()) {
            let products = linears.iter().map(|linear| linear.forward(x)).collect::<Result<Vec<_>>>()?;
            return all_of(products);
        }
        if let Some(products) = Self::onto_biases(&linears, x)? {
            return all_of(products);
        }
        let mut products = Matrix::products(x, linears.map(|linear| &linear.weight))?;
        for (linear, y) in linears.into_iter().zip(&mut products) {
            *y = linear.biased(y.clone())?;
        }
        Ok(products)
    }

    /// Products on their biases in the host's memory; none where there is no bias or it comes later.
    fn onto_biases(linears: &[&Self], x: &Tensor) -> Result<Option<Vec<Tensor>>> {
        let is_later = |linear: &&Self| linear.order.is_some() || linear.factor.is_some();
        if linears.iter().all(|linear| linear.bias.is_none()) || linears.iter().any(is_later) {
            return Ok(None);
        }
        let all: Vec<_> = linears.iter().map(|linear| (&linear.weight, linear.bias.as_ref())).collect();
        Matrix::products_onto(x, &all)
    }

    fn biased(&self, y: Tensor) -> Result<Tensor> {
        let y = match self.factor {
            Some(factor) => (y * factor)?,
            None => y,
        };
        match &self.bias {
            // The product is nobody else's.
            Some(bias) if y.device().is_cpu() && y.dtype() == DType::F32 && bias.dtype() == DType::F32 => {
                y.inplace_op2(bias, &AddToRows)?;
                Ok(y)
            }
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

fn all_of<const N: usize>(products: Vec<Tensor>) -> Result<[Tensor; N]> {
    <[Tensor; N]>::try_from(products).map_err(|_| candle_core::Error::msg("a product is missing"))
}
