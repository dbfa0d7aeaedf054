//! The elements of matrices of floats, as files have them: little-endian, of 32 or 16 bits.

use half::{bf16, f16};
use model_boss_weights::gguf::F8_BLOCK;
use pulp::bytemuck::Pod;
use pulp::cast;

use crate::kernel::StoredFloats;
use crate::lanes::{LANES, Lanes};

/// A type of elements.
pub(crate) trait FloatKind: Copy + Send + Sync + 'static {
    /// The bytes of sixteen elements, or of several times sixteen that have a factor in common.
    type Group: Pod + Send + Sync;

    /// Steps of sixteen elements in a group.
    const STEPS: usize = 1;

    /// The number of elements that a row is a multiple of.
    const UNIT: usize = 1;

    /// Bytes of a row with this number of elements.
    fn row_bytes(depth: usize) -> usize {
        depth * size_of::<Self::Group>() / (LANES * Self::STEPS)
    }

    /// Sixteen elements of a group as f32.
    fn load<L: Lanes>(lanes: L, group: &Self::Group, step: usize) -> L::Floats;

    /// Whether none of the elements is infinity or NaN.
    fn are_finite(bytes: &[u8]) -> bool;

    /// The bytes with their type; none where elements share a factor.
    fn as_floats(_bytes: &[u8]) -> Option<StoredFloats<'_>> {
        None
    }
}

impl FloatKind for f32 {
    type Group = [u8; 4 * LANES];

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, group: &Self::Group, _: usize) -> L::Floats {
        lanes.load_floats(&cast(*group))
    }

    fn are_finite(bytes: &[u8]) -> bool {
        bytes.as_chunks::<4>().0.iter().all(|word| f32::from_le_bytes(*word).is_finite())
    }

    fn as_floats(bytes: &[u8]) -> Option<StoredFloats<'_>> {
        Some(StoredFloats::F32(bytes))
    }
}

impl FloatKind for f16 {
    type Group = [u8; 2 * LANES];

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, group: &Self::Group, _: usize) -> L::Floats {
        lanes.halves(group)
    }

    fn are_finite(bytes: &[u8]) -> bool {
        halves_are_finite::<0x7C00>(bytes)
    }

    fn as_floats(bytes: &[u8]) -> Option<StoredFloats<'_>> {
        Some(StoredFloats::F16(bytes))
    }
}

impl FloatKind for bf16 {
    type Group = [u8; 2 * LANES];

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, group: &Self::Group, _: usize) -> L::Floats {
        lanes.brains(&cast(*group))
    }

    fn are_finite(bytes: &[u8]) -> bool {
        halves_are_finite::<0x7F80>(bytes)
    }

    fn as_floats(bytes: &[u8]) -> Option<StoredFloats<'_>> {
        Some(StoredFloats::Bf16(bytes))
    }
}

/// FP8 with four bits of exponent, as [`TensorType::F8_E4M3`] stores it: 64 elements behind their factor.
///
/// [`TensorType::F8_E4M3`]: model_boss_weights::gguf::TensorType::F8_E4M3
#[derive(Clone, Copy)]
pub(crate) struct E4m3;

impl FloatKind for E4m3 {
    type Group = [[u8; 4]; 1 + F8_BLOCK / 4];

    const STEPS: usize = F8_BLOCK / LANES;
    const UNIT: usize = F8_BLOCK;

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, group: &Self::Group, step: usize) -> L::Floats {
        let first = 4 * step + 1;
        let bytes = [group[first], group[first + 1], group[first + 2], group[first + 3]];
        let factor = lanes.splat_float(f32::from_le_bytes(group[0]));
        lanes.mul(lanes.eighths(&cast(bytes)), factor)
    }

    fn are_finite(bytes: &[u8]) -> bool {
        // All ones beside the sign are not a number, and there is no infinity.
        bytes.chunks_exact(size_of::<Self::Group>()).all(|block| {
            let Some((factor, values)) = block.split_first_chunk() else { return false };
            f32::from_le_bytes(*factor).is_finite()
                && !values.iter().fold(false, |any, byte| any | (byte & 0x7f == 0x7f))
        })
    }
}

// Files are little-endian, and elements are used in their stored form.
const _: () = assert!(cfg!(target_endian = "little"), "weights are read in place on little-endian machines only");

/// Whether no half has all bits of the exponent set, as infinity and NaN have them. Elements are checked in groups
/// without an early end, so that compilers use vector instructions.
fn halves_are_finite<const EXPONENT: u16>(bytes: &[u8]) -> bool {
    let not = |half: &[u8; 2]| u16::from_le_bytes(*half) & EXPONENT == EXPONENT;
    bytes.chunks(1024).all(|some| !some.as_chunks().0.iter().fold(false, |any, half| any | not(half)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fp8_is_searched_for_nan_in_values_and_factors() {
        let mut block = [0x7e; F8_BLOCK + 4];
        for (at, byte, finite) in [(9, 0x7e, true), (9, 0x7f, false), (67, 0xff, false), (3, 0x7f, true)] {
            let before = std::mem::replace(&mut block[at], byte);
            assert_eq!(E4m3::are_finite(&block), finite, "{byte:#x} at {at}");
            block[at] = before;
        }
        block[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
        assert!(!E4m3::are_finite(&block));
    }

    #[test]
    fn halves_are_searched_for_nan_and_infinity_as_stored() {
        for bits in 0..=u16::MAX {
            // One invalid element among many is found at any position.
            let mut bytes = [0; 3000];
            let at = usize::from(bits) % 1500 * 2;
            bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
            assert_eq!(f16::are_finite(&bytes), f16::from_bits(bits).is_finite(), "f16 {bits:#x}");
            assert_eq!(bf16::are_finite(&bytes), bf16::from_bits(bits).is_finite(), "bf16 {bits:#x}");
        }
    }
}
