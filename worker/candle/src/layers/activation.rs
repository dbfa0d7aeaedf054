//! Activations, and what is multiplied with them. Knows elements only.

use candle_core::{CpuStorage, CustomOp1, CustomOp2, DType, InplaceOp1, Layout, Result, Shape, Tensor, bail};
use model_boss_kernels::{cores, exp, vectorized};
use pulp::NullaryFnOnce;
use rayon::prelude::*;

use crate::device::kernels;
use crate::device::rows::SiluForm;
use crate::matrix::tensor_products::{contiguous, contiguous_mut};
use crate::spec::Activation;

/// The factor inside of gpt-oss' sigmoid, which makes it close to GELU.
const SWIGLU_ALPHA: f64 = 1.702;

/// Elements of a piece that one core works on. Fewer are not worth waking other cores for.
const PIECE: usize = 1 << 14;

impl Activation {
    /// Element by element.
    pub(crate) fn forward(self, x: &Tensor) -> Result<Tensor> {
        if x.device().is_cpu()
            && let Some(pass) = OnElements::of(self)
        {
            return x.apply_op1_no_bwd(&pass);
        }
        match self {
            Self::Silu => x.silu(),
            Self::GeluErf => x.gelu_erf(),
            Self::GeluTanh => x.gelu(),
            Self::GeluQuick => (x * f64::from(QUICK))?.silu()? / f64::from(QUICK),
            Self::GeluTanhAbove { deviations } => above(x, f64::from(deviations))?.gelu(),
            Self::Relu => x.relu(),
            Self::ReluSquared => x.relu()?.sqr(),
            Self::SwigluClamped { .. } => bail!("clamped SwiGLU has a gate"),
        }
    }

    /// The same of elements that are nobody else's: the result may take their memory.
    pub(crate) fn in_place(self, x: Tensor) -> Result<Tensor> {
        match OnElements::of(self).filter(|_| x.device().is_cpu() && x.dtype() == DType::F32 && x.is_contiguous()) {
            Some(pass) => {
                x.inplace_op1(&pass)?;
                Ok(x)
            }
            None => self.forward(&x),
        }
    }

    /// The form of the gate for kernels of GPUs; none for other activations.
    pub(crate) fn silu_form(self) -> Option<SiluForm> {
        match self {
            Self::Silu => Some(SiluForm::default()),
            Self::SwigluClamped { limit } => Some(SiluForm { limit, slope: SWIGLU_ALPHA as f32 }),
            _ => None,
        }
    }

    /// `self(gate) * up`, element by element. On the CPU the usual one is a single pass, shared among cores.
    pub(crate) fn gated(self, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
        match self {
            Self::Silu if gate.device().is_cpu() => gate.apply_op2_no_bwd(up, &SiluGated),
            Self::Silu => match kernels::silu_gate(gate, up, SiluForm::default())? {
                Some(gated) => Ok(gated),
                None => gate.silu()? * up,
            },
            Self::SwigluClamped { limit } => {
                if let Some(form) = self.silu_form()
                    && let Some(gated) = kernels::silu_gate(gate, up, form)?
                {
                    return Ok(gated);
                }
                let limit = f64::from(limit);
                let gate = gate.minimum(limit)?;
                let up = (up.clamp(-limit, limit)? + 1.0)?;
                let open = (&gate * candle_nn::ops::sigmoid(&(&gate * SWIGLU_ALPHA)?)?)?;
                open * up
            }
            _ => self.forward(gate)? * up,
        }
    }
}

/// Elements above each row's mean by so many standard deviations, less that bound; 0 elsewhere.
fn above(x: &Tensor, deviations: f64) -> Result<Tensor> {
    let mean = x.mean_keepdim(1)?;
    let variance = x.broadcast_sub(&mean)?.sqr()?.mean_keepdim(1)?;
    let bound = (mean + (variance.sqrt()? * deviations)?)?;
    x.broadcast_sub(&bound)?.relu()
}

/// `silu(gate) * up`.
struct SiluGated;

impl CustomOp2 for SiluGated {
    fn name(&self) -> &'static str {
        "silu-gated"
    }

    fn cpu_fwd(&self, s1: &CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout) -> Result<(CpuStorage, Shape)> {
        let (gate, up) = (contiguous(s1, l1)?, contiguous(s2, l2)?);
        if gate.len() != up.len() {
            bail!("a gate of {} elements cannot open for {}", gate.len(), up.len());
        }
        let mut out = up.to_vec();
        let run = |(out, gate): (&mut [f32], &[f32])| vectorized(GatePiece { gate, out });
        if out.len() <= PIECE {
            run((&mut out, gate));
        } else {
            out.par_chunks_mut(PIECE).zip(gate.par_chunks(PIECE)).for_each(run);
        }
        Ok((CpuStorage::F32(out), l1.shape().clone()))
    }
}

struct GatePiece<'a> {
    gate: &'a [f32],
    out: &'a mut [f32],
}

impl NullaryFnOnce for GatePiece<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (gate, out) in self.gate.iter().zip(self.out) {
            *out *= gate / (1.0 + exp(-gate));
        }
    }
}

/// The tanh in GELU is one of `√(2/π) (x + 0.044715 x³)`, and `(1 + tanh u) / 2` is the logistic function of `2 u`.
const TANH_FACTOR: f32 = 1.595_769_2;
const TANH_CUBED: f32 = 0.044_715;

/// The factor inside of the logistic function that is close to GELU (Hendrycks and Gimpel, 2016, arXiv 1606.08415).
const QUICK: f32 = 1.702;

/// An activation of all elements in a single pass, which is shared among cores.
enum OnElements {
    /// `x / 2 * (1 + erf(x / √2))`.
    GeluErf,
    /// `x * sigmoid(factor (x + cubed x³))`.
    GeluByExp { cubed: f32, factor: f32 },
}

impl OnElements {
    /// The form that an activation has here; none of those that the library computes.
    fn of(activation: Activation) -> Option<Self> {
        match activation {
            Activation::GeluErf => Some(Self::GeluErf),
            Activation::GeluTanh => Some(Self::GeluByExp { cubed: TANH_CUBED, factor: TANH_FACTOR }),
            Activation::GeluQuick => Some(Self::GeluByExp { cubed: 0.0, factor: QUICK }),
            _ => None,
        }
    }

    fn run(&self, values: &mut [f32]) {
        let run = |piece: &mut [f32]| match *self {
            Self::GeluErf => vectorized(GeluPiece(piece)),
            Self::GeluByExp { cubed, factor } => vectorized(GeluByExpPiece { cubed, factor, piece }),
        };
        if values.len() <= PIECE || cores() == 1 {
            run(values);
        } else {
            values.par_chunks_mut(PIECE).for_each(run);
        }
    }
}

impl CustomOp1 for OnElements {
    fn name(&self) -> &'static str {
        "on-elements"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut out = contiguous(storage, layout)?.to_vec();
        self.run(&mut out);
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

impl InplaceOp1 for OnElements {
    fn name(&self) -> &'static str {
        "on-elements"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        self.run(contiguous_mut(storage, layout)?);
        Ok(())
    }
}

struct GeluByExpPiece<'a> {
    cubed: f32,
    factor: f32,
    piece: &'a mut [f32],
}

impl NullaryFnOnce for GeluByExpPiece<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { cubed, factor, piece } = self;
        for x in piece {
            let inner = factor * (cubed * *x * *x).mul_add(*x, *x);
            *x /= 1.0 + exp(-inner);
        }
    }
}

struct GeluPiece<'a>(&'a mut [f32]);

impl NullaryFnOnce for GeluPiece<'_> {
    type Output = ();

    /// `erfc` by Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26: off by 1.5e-7 at most.
    #[inline(always)]
    fn call(self) {
        for x in self.0 {
            let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
            let t = 1.0 / z.mul_add(0.327_591_1, 1.0);
            let mut sum = 1.061_405_4_f32;
            for coefficient in [-1.453_152_1, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
                sum = sum.mul_add(t, coefficient);
            }
            let half = 0.5 * sum * t * exp(-z * z);
            *x *= if *x < 0.0 { half } else { 1.0 - half };
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn a_gate_is_the_activation_times_the_rest_in_any_number_of_pieces() {
        for count in [1, 7, PIECE + 3] {
            let numbers = |step: f32| (0..count).map(|i| ((i as f32 * step) % 13.0) - 6.0).collect::<Vec<f32>>();
            let tensor = |values: Vec<f32>| Tensor::from_vec(values, (1, count), &Device::Cpu).unwrap();
            let (gate, up) = (tensor(numbers(0.37)), tensor(numbers(0.91)));
            let fused = Activation::Silu.gated(&gate, &up).unwrap();
            let apart = (Activation::Silu.forward(&gate).unwrap() * &up).unwrap();
            let values = |tensor: Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            for (fused, apart) in values(fused).into_iter().zip(values(apart)) {
                assert!((fused - apart).abs() <= apart.abs() * 1e-6, "{fused} {apart}");
            }
        }
    }

    #[test]
    fn gelu_is_the_librarys_in_any_number_of_pieces() {
        let numbers: Vec<f32> = (0..PIECE + 99).map(|at| (at as f32 - 8_000.0) / 900.0).chain([f32::NAN]).collect();
        let x = Tensor::from_vec(numbers.clone(), (1, numbers.len()), &Device::Cpu).unwrap();
        let values = |x: Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let (ours, theirs) = (values(Activation::GeluErf.forward(&x).unwrap()), values(x.gelu_erf().unwrap()));
        let in_place = values(Activation::GeluErf.in_place(x.copy().unwrap()).unwrap());
        assert!(in_place.iter().zip(&ours).all(|(one, other)| one.to_bits() == other.to_bits()));
        for ((x, ours), theirs) in numbers.iter().zip(ours).zip(theirs) {
            assert!(
                (ours - theirs).abs() <= 3e-7 * x.abs().max(1.0) || x.is_nan() && ours.is_nan(),
                "{x}: {ours} {theirs}"
            );
        }
    }

    #[test]
    fn approximations_of_gelu_are_the_librarys() {
        let numbers: Vec<f32> = (0..PIECE + 99).map(|at| (at as f32 - 8_000.0) / 900.0).collect();
        let x = Tensor::from_vec(numbers.clone(), (1, numbers.len()), &Device::Cpu).unwrap();
        let values = |x: Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let quick = (candle_nn::ops::sigmoid(&(&x * 1.702).unwrap()).unwrap() * &x).unwrap();
        for (activation, theirs) in [(Activation::GeluTanh, x.gelu().unwrap()), (Activation::GeluQuick, quick)] {
            let ours = values(activation.forward(&x).unwrap());
            for ((x, ours), theirs) in numbers.iter().zip(ours).zip(values(theirs)) {
                assert!((ours - theirs).abs() <= 6e-7 * x.abs().max(1.0), "{activation:?} of {x}: {ours} {theirs}");
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_visible() {
        let tensor = |value: f32| Tensor::new(&[[value]], &Device::Cpu).unwrap();
        let opened =
            |gate, up| Activation::Silu.gated(&tensor(gate), &tensor(up)).unwrap().to_vec2::<f32>().unwrap()[0][0];
        assert!(opened(f32::NAN, 1.0).is_nan() && opened(1.0, f32::NAN).is_nan());
        assert!(opened(f32::INFINITY, 1.0).is_infinite());
        assert!(!opened(f32::NEG_INFINITY, 1.0).is_finite());
    }
}
