//! Activations, and what is multiplied with them. Knows elements only.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::product::contiguous;
use crate::spec::Activation;

/// Elements of a piece that one core works on. Fewer are not worth waking other cores for.
const PIECE: usize = 1 << 14;

impl Activation {
    /// Element by element.
    pub(crate) fn forward(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Silu => x.silu(),
            Self::GeluErf => x.gelu_erf(),
            Self::GeluTanh => x.gelu(),
            Self::Relu => x.relu(),
        }
    }

    /// `self(gate) * up`, element by element. On the CPU the usual one is a single pass, shared among cores.
    pub(crate) fn gated(self, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
        match self {
            Self::Silu if gate.device().is_cpu() => gate.apply_op2_no_bwd(up, &SiluGated),
            _ => self.forward(gate)? * up,
        }
    }
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
        let arch = Arch::new();
        let mut out = up.to_vec();
        let run = |(out, gate): (&mut [f32], &[f32])| arch.dispatch(Piece { gate, out });
        if out.len() <= PIECE {
            run((&mut out, gate));
        } else {
            out.par_chunks_mut(PIECE).zip(gate.par_chunks(PIECE)).for_each(run);
        }
        Ok((CpuStorage::F32(out), l1.shape().clone()))
    }
}

struct Piece<'a> {
    gate: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for Piece<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (gate, out) in self.gate.iter().zip(self.out) {
            *out *= gate / (1.0 + exp(-gate));
        }
    }
}

/// e to the power of `x`, to about two units in the last place: plain arithmetic, so that a loop over it becomes vector
/// instructions. NaN stays NaN.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // e^x = 2^n e^r with |r| ≤ ln 2 / 2; beyond these bounds the result is 0 or infinity as f32 has them, nearly.
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    // Adding and taking off 1.5 · 2^23 rounds to the nearest whole number, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    // ln 2 in two parts, the first with zeros at its end, so that the first product is exact.
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let mut p = 1.0 / 5_040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = f32::mul_add(p, r, coefficient);
    }
    let power = f32::from_bits((shifted.to_bits().wrapping_add(127)) << 23);
    p * power
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn exp_is_the_librarys(x in -87.0_f32..88.0) {
            let exact = f64::from(x).exp();
            prop_assert!((f64::from(exp(x)) - exact).abs() <= exact * 4e-7, "{x}: {} {exact}", exp(x));
        }
    }

    #[test]
    fn the_ends_of_exp() {
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(-200.0) < 1e-37 && exp(f32::NEG_INFINITY) < 1e-37);
        assert!(exp(200.0) > 1e38 && exp(f32::INFINITY) > 1e38);
    }

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
    fn what_is_no_number_stays_visible() {
        let tensor = |value: f32| Tensor::new(&[[value]], &Device::Cpu).unwrap();
        let opened =
            |gate, up| Activation::Silu.gated(&tensor(gate), &tensor(up)).unwrap().to_vec2::<f32>().unwrap()[0][0];
        assert!(opened(f32::NAN, 1.0).is_nan() && opened(1.0, f32::NAN).is_nan());
        assert!(opened(f32::INFINITY, 1.0).is_infinite());
        assert!(!opened(f32::NEG_INFINITY, 1.0).is_finite());
    }
}
