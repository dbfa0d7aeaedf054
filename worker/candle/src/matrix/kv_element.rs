//! The choice among the types that keys and values can be kept in.

use candle_core::{DType, Device};
use model_boss_kernels::KvElement;
use model_boss_protocol::KvCacheType;

use crate::device;
use crate::error::KvTypeUnavailable;

/// The types that not every device has.
#[derive(Clone, Copy, Debug)]
struct KvTypes {
    bf16: bool,
    q8_0: bool,
}

/// The type on a device that computes in `computes`. `narrow` says whether any matrix is stored in fewer bits than
/// f32.
///
/// Without a choice, keys and values on the CPU are f16, unless the whole model is stored in f32, which shows that
/// no rounding is wanted. On other devices they have the type that the model computes in.
pub(crate) fn kv_element(
    wanted: KvCacheType,
    on: &Device,
    computes: DType,
    narrow: bool,
) -> Result<KvElement, KvTypeUnavailable> {
    let bf16 = on.is_cpu() || device::has_bf16(on);
    with(wanted, KvTypes { bf16, q8_0: on.is_cpu() }, if on.is_cpu() && narrow { DType::F16 } else { computes })
}

/// The type on a device that has `types` beside f32 and f16; `auto` is that of `usual`.
fn with(wanted: KvCacheType, types: KvTypes, usual: DType) -> Result<KvElement, KvTypeUnavailable> {
    let instead = if types.bf16 { "auto, f32, f16 or bf16" } else { "auto, f32 or f16" };
    let refuse = || Err(KvTypeUnavailable { wanted, instead });
    match wanted {
        KvCacheType::Auto => Ok(match usual {
            DType::F16 => KvElement::F16,
            DType::BF16 => KvElement::Bf16,
            _ => KvElement::F32,
        }),
        KvCacheType::F32 => Ok(KvElement::F32),
        KvCacheType::F16 => Ok(KvElement::F16),
        KvCacheType::Bf16 if types.bf16 => Ok(KvElement::Bf16),
        KvCacheType::Q8_0 if types.q8_0 => Ok(KvElement::Q8_0),
        KvCacheType::Bf16 | KvCacheType::Q8_0 => refuse(),
    }
}

/// candle's name of it, if tensors can have it.
pub(crate) fn dtype_of_kv(kept: KvElement) -> Option<DType> {
    match kept {
        KvElement::F32 => Some(DType::F32),
        KvElement::F16 => Some(DType::F16),
        KvElement::Bf16 => Some(DType::BF16),
        KvElement::Q8_0 => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn en_2_a_choice_goes_before_the_files_types() {
        let of = |wanted, narrow| kv_element(wanted, &Device::Cpu, DType::F32, narrow);
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
        let gpu = |wanted, bf16| with(wanted, KvTypes { bf16, q8_0: false }, DType::BF16);
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
