//! Products and vectors of words with adapters: each task adds a matrix of low rank (LoRA: Hu et al., 2021, arXiv
//! 2106.09685), which is never multiplied out.

use candle_core::{Result, Tensor};

use super::family::linear;
use super::spec::Adapters;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::named_weights::NamedWeights;
use crate::read::reader::WeightReader;

/// The two matrices of each task; empty where a matrix has no adapters.
pub(super) struct TaskMatrices {
    pairs: Vec<[Tensor; 2]>,
    scale: f64,
}

/// A product with adapters.
pub(super) struct AdaptedLinear {
    linear: Linear,
    adapters: TaskMatrices,
}

impl TaskMatrices {
    /// Those of the matrix at a path.
    pub(super) fn read(
        reader: &mut WeightReader<'_>,
        path: &str,
        adapters: &Adapters,
    ) -> std::result::Result<Self, ModelError> {
        let mut pairs = Vec::new();
        for task in 0..adapters.tasks.len() {
            let name = |part: &str| format!("{path}.task.{task}.{part}.weight");
            if reader.files().has(&name("a")) {
                pairs.push([reader.tensor(&name("a"))?, reader.tensor(&name("b"))?]);
            }
        }
        Ok(Self { pairs, scale: adapters.scale })
    }

    fn of(&self, task: Option<usize>) -> Option<&[Tensor; 2]> {
        self.pairs.get(task?)
    }

    /// The rows at these indices, `[indices]`, of a task's addition to a table of vectors, added to `x`.
    pub(super) fn onto_rows(&self, x: Tensor, indices: &Tensor, task: Option<usize>) -> Result<Tensor> {
        let Some([a, b]) = self.of(task) else { return Ok(x) };
        x + (a.index_select(indices, 0)?.matmul(b)? * self.scale)?
    }
}

impl AdaptedLinear {
    pub(super) fn read(
        reader: &mut WeightReader<'_>,
        path: &str,
        adapters: &Adapters,
    ) -> std::result::Result<Self, ModelError> {
        Ok(Self { linear: linear(reader, path)?, adapters: TaskMatrices::read(reader, path, adapters)? })
    }

    /// The results for each row.
    pub(super) fn outs(&self) -> Result<usize> {
        self.linear.outs()
    }

    /// `[rows, in]` → `[rows, out]`.
    pub(super) fn forward(&self, x: &Tensor, task: Option<usize>) -> Result<Tensor> {
        self.added(self.linear.forward(x)?, x, task)
    }

    /// `[rows, in]` through several products, to `[rows, out]` of each.
    pub(super) fn forward_all<const N: usize>(all: [&Self; N], x: &Tensor, task: Option<usize>) -> Result<[Tensor; N]> {
        let mut products = Linear::forward_all(all.map(|each| &each.linear), x)?;
        for (each, product) in all.into_iter().zip(&mut products) {
            *product = each.added(product.clone(), x, task)?;
        }
        Ok(products)
    }

    fn added(&self, product: Tensor, x: &Tensor, task: Option<usize>) -> Result<Tensor> {
        let Some([a, b]) = self.adapters.of(task) else { return Ok(product) };
        product + (x.matmul(&a.t()?)?.matmul(&b.t()?)? * self.adapters.scale)?
    }
}
