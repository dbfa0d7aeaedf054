//! The fused operations of a Llama layer, each with its gradient. candle-nn's own fused forms have none: they cut the
//! graph without an error. The loss still falls a little, but the lower layers never learn.
//!
//! All of them run on the CPU in f32, on one thread; the trainer spreads a batch over threads.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Storage, Tensor, bail};

/// `x / sqrt(mean(x²) + eps) * weight` over the last dimension (Zhang and Sennrich, 2019).
/// `x: [rows, width]`, `weight: [width]`.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    x.apply_op2(weight, RmsNormOp { eps })
}

/// Splits heads and rotates them: `[batch * time, heads * width]` to `[batch, heads, time, width]`, each head turned by
/// its position in the half-split layout of rotary embeddings (Su et al., 2021). The row's first token is position 0.
pub fn rotary_heads(x: &Tensor, heads: usize, rotary: &Rotary) -> Result<Tensor> {
    x.apply_op1(SplitHeads { heads, time: rotary.time, rotary: rotary.clone() })
}

/// Softmax over the keys that a query may see: those of its own time and earlier ones, back to its conversation's
/// start. Scores are multiplied by `scale` first.
///
/// Shapes are `scores: [batch, .., rows, time]` and `starts: [batch * time]`. Row `r` has time `r % time`, so the
/// query heads that share a key head may follow each other in `rows`.
pub fn causal_softmax(scores: &Tensor, starts: &Arc<[u32]>, scale: f32) -> Result<Tensor> {
    scores.apply_op1(CausalSoftmax { starts: Arc::clone(starts), scale })
}

/// `silu(gate) * up`, element by element.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate.apply_op2(up, SwiGlu)
}

/// The sum over rows of `-log softmax(logits)[target] * weight`. `logits: [rows, vocabulary]`.
pub fn cross_entropy(logits: &Tensor, targets: Vec<(u32, f32)>) -> Result<Tensor> {
    logits.apply_op1(CrossEntropy { targets })
}

/// Sines and cosines of `[time, width / 2]` angles.
#[derive(Clone)]
pub struct Rotary {
    time: usize,
    half: usize,
    sines_cosines: Arc<[(f32, f32)]>,
}

impl Rotary {
    /// The angles of `time` positions for heads of `width` elements: `position * base^(-2i / width)`.
    pub fn new(time: usize, width: usize, base: f64) -> Self {
        let half = width / 2;
        let angle = |at: usize| (at / half) as f64 * base.powf(-((at % half) as f64) / half as f64);
        let sines_cosines = (0..time * half).map(|at| (angle(at).sin() as f32, angle(at).cos() as f32)).collect();
        Self { time, half, sines_cosines }
    }

    /// The number of positions that have angles.
    pub fn time(&self) -> usize {
        self.time
    }
}

fn values<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match (storage.as_slice::<f32>(), layout.contiguous_offsets()) {
        (Ok(all), Some((start, end))) => Ok(&all[start..end]),
        (Err(error), _) => Err(error),
        (_, None) => bail!("a fused operation needs contiguous input"),
    }
}

/// Calls `read` with a tensor's values, without a copy: backward passes read far more values than they keep.
fn with_values<R>(tensor: &Tensor, read: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => values(storage, layout).map(read),
        _ => bail!("training runs on the CPU"),
    }
}

fn like(values: Vec<f32>, of: &Tensor) -> Result<Option<Tensor>> {
    Tensor::from_vec(values, of.shape(), of.device()).map(Some)
}

struct RmsNormOp {
    eps: f32,
}

impl RmsNormOp {
    fn inverse_rms(&self, row: &[f32]) -> f32 {
        let square: f32 = row.iter().map(|x| x * x).sum();
        1.0 / (square / row.len() as f32 + self.eps).sqrt()
    }

    fn gradients(&self, xs: &[f32], ws: &[f32], gs: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let width = ws.len();
        let mut dx = Vec::with_capacity(xs.len());
        let mut dw = vec![0_f32; width];
        for (row, grad) in xs.chunks_exact(width).zip(gs.chunks_exact(width)) {
            let scale = self.inverse_rms(row);
            let mut dot = 0_f32;
            for i in 0..width {
                dw[i] += grad[i] * row[i] * scale;
                dot += grad[i] * ws[i] * row[i];
            }
            let pull = dot * scale * scale * scale / width as f32;
            dx.extend((0..width).map(|i| grad[i] * ws[i] * scale - row[i] * pull));
        }
        (dx, dw)
    }
}

impl CustomOp2 for RmsNormOp {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(&self, s1: &CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, weight) = (values(s1, l1)?, values(s2, l2)?);
        let mut out = Vec::with_capacity(x.len());
        for row in x.chunks_exact(weight.len()) {
            let scale = self.inverse_rms(row);
            out.extend(row.iter().zip(weight).map(|(x, w)| x * scale * w));
        }
        Ok((CpuStorage::F32(out), l1.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, weight: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let ws: Vec<f32> = weight.to_vec1()?;
        let (dx, dw) = with_values(x, |xs| with_values(grad, |gs| self.gradients(xs, &ws, gs)))??;
        Ok((like(dx, x)?, like(dw, weight)?))
    }
}

struct SplitHeads {
    heads: usize,
    time: usize,
    rotary: Rotary,
}

impl SplitHeads {
    /// Calls `each` for all pairs `(i, i + half)` of a head with `(index in x, index in the result, sine, cosine)`.
    fn pairs(&self, elements: usize, mut each: impl FnMut(usize, usize, f32, f32)) {
        let (half, width) = (self.rotary.half, self.rotary.half * 2);
        for row in 0..elements / (self.heads * width) {
            let (batch, time) = (row / self.time, row % self.time);
            let angles = &self.rotary.sines_cosines[time * half..(time + 1) * half];
            for head in 0..self.heads {
                let from = (row * self.heads + head) * width;
                let to = ((batch * self.heads + head) * self.time + time) * width;
                for (i, &(sine, cosine)) in angles.iter().enumerate() {
                    each(from + i, to + i, sine, cosine);
                }
            }
        }
    }
}

impl CustomOp1 for SplitHeads {
    fn name(&self) -> &'static str {
        "split-heads"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = values(storage, layout)?;
        let (half, mut out) = (self.rotary.half, vec![0_f32; x.len()]);
        self.pairs(x.len(), |from, to, sine, cosine| {
            let (a, b) = (x[from], x[from + half]);
            out[to] = a * cosine - b * sine;
            out[to + half] = b * cosine + a * sine;
        });
        let batch = x.len() / (self.heads * self.time * half * 2);
        Ok((CpuStorage::F32(out), Shape::from((batch, self.heads, self.time, half * 2))))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let (half, mut dx) = (self.rotary.half, vec![0_f32; x.elem_count()]);
        with_values(grad, |gs| {
            self.pairs(gs.len(), |from, to, sine, cosine| {
                let (a, b) = (gs[to], gs[to + half]);
                dx[from] = a * cosine + b * sine;
                dx[from + half] = b * cosine - a * sine;
            });
        })?;
        like(dx, x)
    }
}

struct CausalSoftmax {
    starts: Arc<[u32]>,
    scale: f32,
}

impl CustomOp1 for CausalSoftmax {
    fn name(&self) -> &'static str {
        "causal-softmax"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let scores = values(storage, layout)?;
        let Some(&time) = layout.dims().last() else { bail!("scores without dimensions") };
        let batch = self.starts.len() / time;
        let rows = scores.len() / time / batch.max(1);
        let mut out = vec![0_f32; scores.len()];
        for (at, (row, out)) in scores.chunks_exact(time).zip(out.chunks_exact_mut(time)).enumerate() {
            let now = at % time;
            let seen = self.starts[at / rows * time + now] as usize..now + 1;
            let (row, out) = (&row[seen.clone()], &mut out[seen]);
            let top = row.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
            let mut sum = 0.0;
            for (out, score) in out.iter_mut().zip(row) {
                *out = ((score - top) * self.scale).exp();
                sum += *out;
            }
            out.iter_mut().for_each(|p| *p /= sum);
        }
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(&self, scores: &Tensor, probabilities: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let time = scores.dim(candle_core::D::Minus1)?;
        let mut out = Vec::with_capacity(scores.elem_count());
        let mut gradients = |ps: &[f32], gs: &[f32]| {
            for (p, g) in ps.chunks_exact(time).zip(gs.chunks_exact(time)) {
                let dot: f32 = p.iter().zip(g).map(|(p, g)| p * g).sum();
                out.extend(p.iter().zip(g).map(|(p, g)| p * (g - dot) * self.scale));
            }
        };
        with_values(probabilities, |ps| with_values(grad, |gs| gradients(ps, gs)))??;
        like(out, scores)
    }
}

struct SwiGlu;

impl CustomOp2 for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn cpu_fwd(&self, s1: &CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout) -> Result<(CpuStorage, Shape)> {
        let out = values(s1, l1)?.iter().zip(values(s2, l2)?).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        Ok((CpuStorage::F32(out), l1.shape().clone()))
    }

    fn bwd(&self, gate: &Tensor, up: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (mut d_gate, mut d_up) = (Vec::with_capacity(gate.elem_count()), Vec::with_capacity(up.elem_count()));
        let mut gradients = |gates: &[f32], ups: &[f32], grads: &[f32]| {
            for ((&gate, &up), &grad) in gates.iter().zip(ups).zip(grads) {
                let sigmoid = 1.0 / (1.0 + (-gate).exp());
                d_gate.push(grad * up * sigmoid * (1.0 + gate * (1.0 - sigmoid)));
                d_up.push(grad * gate * sigmoid);
            }
        };
        with_values(gate, |g| with_values(up, |u| with_values(grad, |grad| gradients(g, u, grad))))???;
        Ok((like(d_gate, gate)?, like(d_up, up)?))
    }
}

struct CrossEntropy {
    targets: Vec<(u32, f32)>,
}

impl CrossEntropy {
    /// `log(sum(exp(row)))`.
    fn log_sum(row: &[f32]) -> f32 {
        let top = row.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        top + row.iter().map(|x| (x - top).exp()).sum::<f32>().ln()
    }
}

impl CustomOp1 for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let logits = values(storage, layout)?;
        let (rows, width) = layout.shape().dims2()?;
        if rows != self.targets.len() || self.targets.iter().any(|&(target, _)| target as usize >= width) {
            bail!("{} targets below {width} do not fit {rows} rows", self.targets.len());
        }
        let loss: f64 = (logits.chunks_exact(width).zip(&self.targets))
            .map(|(row, &(target, weight))| f64::from(weight * (Self::log_sum(row) - row[target as usize])))
            .sum();
        Ok((CpuStorage::F32(vec![loss as f32]), Shape::from(())))
    }

    fn bwd(&self, logits: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let grad = grad.to_scalar::<f32>()?;
        let width = logits.dim(1)?;
        let mut values: Vec<f32> = logits.flatten_all()?.to_vec1()?;
        for (row, &(target, weight)) in values.chunks_exact_mut(width).zip(&self.targets) {
            let (log_sum, scale) = (Self::log_sum(row), weight * grad);
            row.iter_mut().for_each(|x| *x = (*x - log_sum).exp() * scale);
            row[target as usize] -= scale;
        }
        like(values, logits)
    }
}
