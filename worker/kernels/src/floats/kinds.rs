//! The elements of matrices of floats, as files have them: little-endian, of 32 or 16 bits.

use half::{bf16, f16};
use pulp::bytemuck::Pod;
use pulp::cast;

use crate::lanes::{LANES, Lanes};

/// A type of elements.
pub(crate) trait FloatKind: Copy + Send + Sync + 'static {
    /// The bytes of sixteen elements.
    type Group: Pod + Send + Sync;

    /// Bytes of an element.
    const BYTES: usize = size_of::<Self::Group>() / LANES;

    /// Sixteen elements as f32.
    fn load<L: Lanes>(lanes: L, group: &Self::Group) -> L::Floats;

    /// Whether none of the elements is infinity or NaN.
    fn are_finite(bytes: &[u8]) -> bool;
}

impl FloatKind for f32 {
    type Group = [u8; 4 * LANES];

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, group: &Self::Group) -> L::Floats {
        lanes.load_floats(&cast(*group))
    }

    fn are_finite(bytes: &[u8]) -> bool {
        bytes.as_chunks::<4>().0.iter().all(|word| f32::from_le_bytes(*word).is_finite())
    }
}

impl FloatKind for f16 {
    type Group = [u8; 2 * LANES];

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, group: &Self::Group) -> L::Floats {
        lanes.halves(group)
    }

    fn are_finite(bytes: &[u8]) -> bool {
        halves_are_finite::<0x7C00>(bytes)
    }
}

impl FloatKind for bf16 {
    type Group = [u8; 2 * LANES];

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, group: &Self::Group) -> L::Floats {
        lanes.brains(&cast(*group))
    }

    fn are_finite(bytes: &[u8]) -> bool {
        halves_are_finite::<0x7F80>(bytes)
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
