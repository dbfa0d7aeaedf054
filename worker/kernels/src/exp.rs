//! e to the power of x, for loops that become vector instructions. Knows one number.

/// e to the power of `x`, with a relative error below 4e-7: plain arithmetic without branches or calls. Below −87 the
/// result is that of −87 (1.6e-38), above 88 it is at least 1.7e38. NaN stays NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // e^x = 2^n e^r with |r| ≤ ln 2 / 2; beyond these bounds the result is 0 or infinity as f32 has them, nearly.
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    // Adding and subtracting 1.5 · 2^23 rounds to the nearest whole number, which is then in the low bits.
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
}
