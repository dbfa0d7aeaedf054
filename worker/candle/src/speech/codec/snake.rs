//! Snake (Ziyin et al., 2020, arXiv 2006.08195): `x + sin²(a x) / a`, with a number `a` for each place of a row.

use candle_core::{CpuStorage, CustomOp1, Layout, Result as CandleResult, Shape, Tensor};
use rayon::prelude::*;

use crate::error::ModelError;
use crate::matrix::tensor_products::contiguous;
use crate::speech::weights::SpeechWeights;

/// The number that is added to each `a`, as in the reference.
const NOT_ZERO: f64 = 1e-9;

/// Numbers that one thread takes at a time.
const AT_ONCE: usize = 1 << 14;

/// The activation with its numbers.
pub(super) struct Snake {
    /// `[1, width]` each: `a`, and one divided by it.
    factors: Tensor,
    shares: Tensor,
    /// The same in the host's memory.
    pairs: Vec<[f32; 2]>,
}

impl Snake {
    /// Reads `PATH.alpha`, `[1, width, 1]`.
    pub(super) fn read(weights: &mut SpeechWeights<'_, '_>, path: &str, width: usize) -> Result<Self, ModelError> {
        let factors = weights.tensor(&format!("{path}.alpha"), &[1, width, 1])?;
        let made = || -> CandleResult<Self> {
            let factors = factors.reshape((1, width))?;
            let shares = (&factors + NOT_ZERO)?.recip()?;
            let [own, shared] = [factors.flatten_all()?.to_vec1::<f32>()?, shares.flatten_all()?.to_vec1::<f32>()?];
            let pairs = own.into_iter().zip(shared).map(|(factor, share)| [factor, share]).collect();
            Ok(Self { factors, shares, pairs })
        };
        weights.made(made())
    }

    /// `[moments, width]` → `[moments, width]`.
    pub(super) fn forward(&self, x: &Tensor) -> CandleResult<Tensor> {
        if x.device().is_cpu() {
            return x.apply_op1_no_bwd(&SnakeRows(&self.pairs));
        }
        x + x.broadcast_mul(&self.factors)?.sin()?.sqr()?.broadcast_mul(&self.shares)?
    }
}

/// The same on the CPU, in one pass.
struct SnakeRows<'a>(&'a [[f32; 2]]);

impl CustomOp1 for SnakeRows<'_> {
    fn name(&self) -> &'static str {
        "snake"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> CandleResult<(CpuStorage, Shape)> {
        let x = contiguous(storage, layout)?;
        let width = self.0.len();
        let mut y = vec![0.0_f32; x.len()];
        let rows = AT_ONCE.div_ceil(width.max(1)) * width.max(1);
        y.par_chunks_mut(rows).zip(x.par_chunks(rows)).for_each(|(y, x)| {
            for (y, x) in y.chunks_mut(width).zip(x.chunks(width)) {
                for ((y, x), [factor, share]) in y.iter_mut().zip(x).zip(self.0) {
                    let sine = (factor * x).sin();
                    *y = x + share * sine * sine;
                }
            }
        });
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }
}
