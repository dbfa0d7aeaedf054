//! Norms and sums whose weights a layer makes of a picture's conditions (Peebles and Xie, 2023, arXiv 2212.09748).

use candle_core::{CpuStorage, InplaceOp3, Layout, Result, Tensor, bail};
use rayon::prelude::*;

use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::norm::LayerNorm;
use crate::matrix::tensor_products::{contiguous, contiguous_mut};
use crate::pictures::layers::PlaneWeights;
use crate::speech::weights::SpeechWeights;

/// Epsilon of the norms.
const EPS: f32 = 1e-6;

/// A product that makes some rows of one width.
pub(in crate::pictures) struct Modulation {
    product: Linear,
    width: usize,
}

/// The rows of all conditions. Each condition belongs to as many rows of a stream as every other.
pub(in crate::pictures) struct Modulated {
    /// `[conditions, parts * width]`.
    rows: Tensor,
    width: usize,
}

impl Modulation {
    pub(in crate::pictures) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        path: &str,
        [parts, width]: [usize; 2],
    ) -> std::result::Result<Self, ModelError> {
        Ok(Self { product: weights.panels(path, [parts * width, width])?, width })
    }

    /// `[conditions, width]` behind their activation.
    pub(in crate::pictures) fn forward(&self, conditions: &Tensor) -> Result<Modulated> {
        Ok(Modulated { rows: self.product.forward(conditions)?, width: self.width })
    }
}

impl Modulated {
    /// `[conditions, width]`.
    fn part(&self, at: usize) -> Result<Tensor> {
        self.rows.narrow(1, at * self.width, self.width)?.contiguous()
    }

    /// Rows of a stream that belong to each condition.
    fn each(&self, x: &Tensor) -> Result<usize> {
        let (rows, conditions) = (x.dim(0)?, self.rows.dim(0)?);
        if !rows.is_multiple_of(conditions) {
            bail!("{rows} rows do not belong to {conditions} conditions");
        }
        Ok(rows / conditions)
    }

    /// The norm of rows, with the parts that are its bias and what its weight has more than 1.
    pub(in crate::pictures) fn normed(&self, x: &Tensor, [shift, scale]: [usize; 2]) -> Result<Tensor> {
        let each = self.each(x)?;
        let (shift, scale) = (self.part(shift)?, (self.part(scale)? + 1.0)?);
        let norm =
            |at: usize| LayerNorm::new(scale.get(at)?, shift.get(at)?, EPS).forward(&x.narrow(0, at * each, each)?);
        let normed = (0..self.rows.dim(0)?).map(norm).collect::<Result<Vec<_>>>()?;
        match normed.as_slice() {
            [one] => Ok(one.clone()),
            all => Tensor::cat(all, 0),
        }
    }

    /// Rows and the product of others with a part. The others are nobody else's: the result may take their memory.
    pub(in crate::pictures) fn gated(&self, x: &Tensor, others: Tensor, gate: usize) -> Result<Tensor> {
        let (each, gate) = (self.each(x)?, self.part(gate)?);
        if x.device().is_cpu() && others.is_contiguous() && x.is_contiguous() {
            others.inplace_op3(x, &gate, &AddGated { each })?;
            return Ok(others);
        }
        let (conditions, width) = gate.dims2()?;
        let grouped = others.reshape((conditions, each, width))?;
        x + grouped.broadcast_mul(&gate.reshape((conditions, 1, width))?)?.reshape(x.shape())?
    }
}

/// On the CPU.
struct AddGated {
    each: usize,
}

impl InplaceOp3 for AddGated {
    fn name(&self) -> &'static str {
        "add-gated"
    }

    fn cpu_fwd(
        &self,
        s1: &mut CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<()> {
        if l1.shape() != l2.shape() {
            bail!("rows of {:?} are added to {:?}", l1.shape(), l2.shape());
        }
        let width = l3.shape().dims2()?.1;
        let (rows, x, gates) = (contiguous_mut(s1, l1)?, contiguous(s2, l2)?, contiguous(s3, l3)?);
        let all = rows.par_chunks_exact_mut(self.each * width).zip(x.par_chunks_exact(self.each * width));
        all.zip(gates.par_chunks_exact(width)).for_each(|((rows, x), gate)| {
            rows.par_chunks_exact_mut(width).zip(x.par_chunks_exact(width)).for_each(|(row, x)| {
                for ((number, x), gate) in row.iter_mut().zip(x).zip(gate) {
                    *number = x + gate * *number;
                }
            });
        });
        Ok(())
    }
}
