//! The types that keys and values can be kept in, and the choice among them.

use candle_core::{DType, Device};
use half::{bf16, f16};
use model_boss_protocol::KvCacheType;

use crate::device;
use crate::error::KvTypeUnavailable;

/// Elements of a head that share a scale in [`KvElement::Q8_0`]; the last group may be shorter.
pub(crate) const GROUP: usize = 32;

/// The type that keys and values are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KvElement {
    /// f32.
    F32,
    /// f16: half the memory, and half the bytes to read for each token.
    F16,
    /// bf16: as large as f16, with the range of f32 and less precision.
    Bf16,
    /// Integers of 8 bits, with an f16 scale for each [`GROUP`] elements of a token: 34 bytes for 32 elements.
    Q8_0,
}

impl KvElement {
    /// The type on a device that computes in `computes`. `narrow` says whether any matrix is stored in fewer bits than
    /// f32.
    ///
    /// Without a choice, keys and values on the CPU are f16, unless the whole model is stored in f32, which shows that
    /// no rounding is wanted. On other devices they have the type that the model computes in.
    pub(crate) fn of(
        wanted: KvCacheType,
        on: &Device,
        computes: DType,
        narrow: bool,
    ) -> Result<Self, KvTypeUnavailable> {
        let refuse = |instead| Err(KvTypeUnavailable { wanted, instead });
        match wanted {
            KvCacheType::Auto => Ok(match computes {
                _ if on.is_cpu() && narrow => Self::F16,
                DType::F16 => Self::F16,
                DType::BF16 => Self::Bf16,
                _ => Self::F32,
            }),
            KvCacheType::F32 => Ok(Self::F32),
            KvCacheType::F16 => Ok(Self::F16),
            KvCacheType::Bf16 if on.is_cpu() || device::has_bf16(on) => Ok(Self::Bf16),
            KvCacheType::Bf16 => refuse("auto, f16 or f32"),
            KvCacheType::Q8_0 if on.is_cpu() => Ok(Self::Q8_0),
            KvCacheType::Q8_0 => refuse("auto, f16, bf16 or f32, or the device cpu"),
        }
    }

    /// Bytes of one head of one key or value.
    pub(crate) fn bytes_of(self, head_dim: usize) -> usize {
        match self {
            Self::F32 => head_dim * size_of::<f32>(),
            Self::F16 => head_dim * size_of::<f16>(),
            Self::Bf16 => head_dim * size_of::<bf16>(),
            Self::Q8_0 => head_dim + head_dim.div_ceil(GROUP) * size_of::<f16>(),
        }
    }

    /// candle's name of it, if tensors can have it.
    pub(crate) fn dtype(self) -> Option<DType> {
        match self {
            Self::F32 => Some(DType::F32),
            Self::F16 => Some(DType::F16),
            Self::Bf16 => Some(DType::BF16),
            Self::Q8_0 => None,
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

    #[test]
    fn en_2_a_choice_goes_before_the_files_types() {
        let of = |wanted, narrow| KvElement::of(wanted, &Device::Cpu, DType::F32, narrow);
        assert_eq!(of(KvCacheType::Auto, false), Ok(KvElement::F32));
        assert_eq!(of(KvCacheType::Auto, true), Ok(KvElement::F16));
        for narrow in [false, true] {
            assert_eq!(of(KvCacheType::F32, narrow), Ok(KvElement::F32));
            assert_eq!(of(KvCacheType::F16, narrow), Ok(KvElement::F16));
            assert_eq!(of(KvCacheType::Bf16, narrow), Ok(KvElement::Bf16));
            assert_eq!(of(KvCacheType::Q8_0, narrow), Ok(KvElement::Q8_0));
        }
        let refusal = KvTypeUnavailable { wanted: KvCacheType::Q8_0, instead: "f16" }.to_string();
        assert!(refusal.contains("\"q8_0\"") && refusal.contains("choose f16"), "{refusal}");
    }
}
