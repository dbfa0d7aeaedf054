//! The types that keys and values can be kept in.

use half::{bf16, f16};

/// Elements of a head that share a scale in [`KvElement::Q8_0`]; the last group may be shorter.
pub(crate) const GROUP: usize = 32;

/// The type that keys and values are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvElement {
    /// f32.
    F32,
    /// f16: half the memory, and half the bytes to read for each token.
    F16,
    /// bf16: as large as f16, with the range of f32 and less precision.
    Bf16,
    /// Integers of 8 bits, with an f16 scale for each 32 elements of a token, which take 34 bytes.
    Q8_0,
}

impl KvElement {
    /// Bytes of one head of one key or value.
    pub fn bytes_of(self, head_dim: usize) -> usize {
        match self {
            Self::F32 => head_dim * size_of::<f32>(),
            Self::F16 => head_dim * size_of::<f16>(),
            Self::Bf16 => head_dim * size_of::<bf16>(),
            Self::Q8_0 => head_dim + head_dim.div_ceil(GROUP) * size_of::<f16>(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn en_2_eight_bits_take_thirty_four_bytes_for_thirty_two_elements() {
        let bytes = |kept: KvElement| kept.bytes_of(128);
        assert_eq!([KvElement::F32, KvElement::F16, KvElement::Bf16].map(bytes), [512, 256, 256]);
        assert_eq!(KvElement::Q8_0.bytes_of(128), 128 / 32 * 34);
        assert_eq!(KvElement::Q8_0.bytes_of(72), 72 + 3 * 2, "the last group is shorter");
    }
}
