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

/// The types that not every device has.
#[derive(Clone, Copy, Debug)]
struct KvTypes {
    bf16: bool,
    q8_0: bool,
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
        let bf16 = on.is_cpu() || device::has_bf16(on);
        Self::with(
            wanted,
            KvTypes { bf16, q8_0: on.is_cpu() },
            if on.is_cpu() && narrow { DType::F16 } else { computes },
        )
    }

    /// The type on a device that has `types` beside f32 and f16; `auto` is that of `usual`.
    fn with(wanted: KvCacheType, types: KvTypes, usual: DType) -> Result<Self, KvTypeUnavailable> {
        let instead = if types.bf16 { "auto, f32, f16 or bf16" } else { "auto, f32 or f16" };
        let refuse = || Err(KvTypeUnavailable { wanted, instead });
        match wanted {
            KvCacheType::Auto => Ok(match usual {
                DType::F16 => Self::F16,
                DType::BF16 => Self::Bf16,
                _ => Self::F32,
            }),
            KvCacheType::F32 => Ok(Self::F32),
            KvCacheType::F16 => Ok(Self::F16),
            KvCacheType::Bf16 if types.bf16 => Ok(Self::Bf16),
            KvCacheType::Q8_0 if types.q8_0 => Ok(Self::Q8_0),
            KvCacheType::Bf16 | KvCacheType::Q8_0 => refuse(),
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
    }

    #[test]
    fn en_2_a_device_refuses_a_type_that_it_lacks_and_names_those_it_has() {
        let gpu = |wanted, bf16| KvElement::with(wanted, KvTypes { bf16, q8_0: false }, DType::BF16);
        assert_eq!(gpu(KvCacheType::Auto, true), Ok(KvElement::Bf16));
        assert_eq!(gpu(KvCacheType::Bf16, true), Ok(KvElement::Bf16));
        assert_eq!(gpu(KvCacheType::F32, false), Ok(KvElement::F32));
        for (wanted, bf16, said) in [
            (KvCacheType::Q8_0, true, "\"q8_0\" is not available on this device; choose auto, f32, f16 or bf16"),
            (KvCacheType::Q8_0, false, "\"q8_0\" is not available on this device; choose auto, f32 or f16"),
            (KvCacheType::Bf16, false, "\"bf16\" is not available on this device; choose auto, f32 or f16"),
        ] {
            let refusal = gpu(wanted, bf16).unwrap_err().to_string();
            assert!(refusal.ends_with(said), "{refusal}");
        }
    }
}
