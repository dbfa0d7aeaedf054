//! Keys and values between f32 and the types that they are kept in. Knows numbers only.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use pulp::NullaryFnOnce;

use super::kernel::{Groups, Panel, ScaledPanel};
use crate::attention::element::GROUP;

/// The largest integer of a group, which has the group's largest number.
const MOST: f32 = 127.0;

/// Elements that are converted by one call of `half`, which looks for instructions each time.
const PIECE: usize = 64;

/// Rows of `width` as f32, into the beginnings of rows of `stride`; exact.
pub(super) struct PanelSpread<'a> {
    pub(super) rows: Panel<'a>,
    pub(super) width: usize,
    pub(super) wide: &'a mut [f32],
    pub(super) stride: usize,
}

impl NullaryFnOnce for PanelSpread<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { rows, width, wide, stride } = self;
        let wide = wide.chunks_mut(stride).map(|row| &mut row[..width]).take(rows.len() / width.max(1));
        match rows {
            Panel::Floats(floats) => {
                wide.zip(floats.chunks_exact(width)).for_each(|(wide, floats)| wide.copy_from_slice(floats));
            }
            Panel::Halves(bits) => {
                wide.zip(bits.chunks_exact(width)).for_each(|(wide, bits)| from_halves(bits, wide));
            }
            Panel::Brains(bits) => {
                for (wide, bits) in wide.zip(bits.chunks_exact(width)) {
                    wide.iter_mut().zip(bits).for_each(|(wide, bits)| *wide = from_brain(*bits));
                }
            }
            Panel::Scaled(ScaledPanel { quants, scales, groups: Groups::Columns }) => {
                let mut factors = vec![0.0; width];
                for (at, (wide, quants)) in wide.zip(quants.chunks_exact(width)).enumerate() {
                    if at % GROUP == 0 {
                        from_halves(&scales[at / GROUP * width..][..width], &mut factors);
                    }
                    for ((wide, quant), factor) in wide.iter_mut().zip(quants).zip(&factors) {
                        *wide = f32::from(*quant) * factor;
                    }
                }
            }
            Panel::Scaled(ScaledPanel { quants, scales, groups: Groups::Rows }) => {
                let scales = scales.chunks_exact(width.div_ceil(GROUP));
                for ((wide, quants), scales) in wide.zip(quants.chunks_exact(width)).zip(scales) {
                    for ((wide, quants), scale) in wide.chunks_mut(GROUP).zip(quants.chunks(GROUP)).zip(scales) {
                        let factor = f16::from_bits(*scale).to_f32();
                        wide.iter_mut().zip(quants).for_each(|(wide, quant)| *wide = f32::from(*quant) * factor);
                    }
                }
            }
        }
    }
}

/// f16 as f32, exactly. Both are of the same length.
pub(super) fn from_halves(bits: &[u16], wide: &mut [f32]) {
    bits.reinterpret_cast::<f16>().convert_to_f32_slice(wide);
}

/// bf16 as f32, exactly.
#[inline(always)]
pub(super) fn from_brain(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to f16. Values beyond its range stay at its end, because infinity would spoil every later token of the
/// sequence. NaN stays NaN.
pub(super) fn to_halves(wide: &[f32], bits: &mut [u16]) {
    let largest = f16::MAX.to_f32();
    let mut held = [0.0; PIECE];
    for (wide, bits) in wide.chunks(held.len()).zip(bits.chunks_mut(held.len())) {
        let held = &mut held[..wide.len()];
        for (held, wide) in held.iter_mut().zip(wide) {
            *held = wide.clamp(-largest, largest);
        }
        bits.reinterpret_cast_mut::<f16>().convert_from_f32_slice(held);
    }
}

/// Rounds to bf16; its ends are as those of [`to_halves`].
pub(super) fn to_brains(wide: &[f32], bits: &mut [u16]) {
    let largest = bf16::MAX.to_f32();
    for (wide, bits) in wide.iter().zip(bits) {
        *bits = bf16::from_f32(wide.clamp(-largest, largest)).to_bits();
    }
}

/// Rounds a group of at most [`GROUP`] elements to integers; gives their scale as the bits of an f16. Its ends are as
/// those of [`to_halves`]. NaN makes the whole group NaN.
pub(super) fn to_scaled(wide: &[f32], quants: &mut [i8]) -> u16 {
    let largest = wide.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    let scale =
        if wide.iter().any(|x| x.is_nan()) { f16::NAN } else { f16::from_f32((largest / MOST).min(f16::MAX.to_f32())) };
    // The rounded scale, so that each integer is the nearest to its number.
    let scaled = scale.to_f32();
    for (quant, x) in quants.iter_mut().zip(wide) {
        // A scale of zero gives no number at all or infinity, which become 0 and an end, and are 0 when read.
        *quant = (x / scaled).round_ties_even().clamp(-MOST, MOST) as i8;
    }
    scale.to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_f16_cannot_hold_stays_at_its_end() {
        let mut bits = [0; 5];
        to_halves(&[1e9, -1e9, f32::INFINITY, f32::NAN, 1.0 + 1.0 / 4_096.0], &mut bits);
        let mut wide = [0.0; 5];
        from_halves(&bits, &mut wide);
        assert_eq!((wide[0], wide[1], wide[2], wide[4]), (65_504.0, -65_504.0, 65_504.0, 1.0));
        assert!(wide[3].is_nan());
    }

    #[test]
    fn what_bf16_cannot_hold_stays_at_its_end() {
        let mut bits = [0; 4];
        to_brains(&[f32::INFINITY, f32::MIN, f32::NAN, 1.0 + 1.0 / 1_024.0], &mut bits);
        let wide = bits.map(from_brain);
        assert_eq!((wide[0], wide[1], wide[3]), (bf16::MAX.to_f32(), bf16::MIN.to_f32(), 1.0));
        assert!(wide[2].is_nan());
    }

    #[test]
    fn en_2_integers_are_within_half_a_step_and_keep_their_ends() {
        let read = |numbers: &[f32]| -> Vec<f32> {
            let mut quants = vec![0; numbers.len()];
            let scale = f16::from_bits(to_scaled(numbers, &mut quants)).to_f32();
            quants.into_iter().map(|quant| f32::from(quant) * scale).collect()
        };
        let numbers: Vec<f32> = (0..GROUP).map(|i| (i as f32 * 1.7).sin() * 3.0).collect();
        let largest = numbers.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        for (read, number) in read(&numbers).iter().zip(&numbers) {
            // Half a step, and the rounding of the scale at the ends.
            assert!((read - number).abs() <= largest * (0.5 / 127.0 + 1e-3), "{read} {number}");
        }
        assert_eq!(read(&[0.0, -0.0]), [0.0, 0.0]);
        assert_eq!(read(&[1e-12, -1e-12]), [0.0, 0.0], "below the smallest scale");
        assert_eq!(read(&[f32::INFINITY, 1.0])[0], 127.0 * f16::MAX.to_f32());
        assert!(read(&[f32::NAN, 1.0]).iter().all(|x| x.is_nan()));
    }
}
