//! A device of a load: the bytes that may be allocated there, and the layers that it gets.

use std::ops::Range;

use candle_core::Device;
use model_boss_protocol::{ByteCount, DeviceId, KvCacheType};
use model_boss_weights::gguf::TensorType;

use crate::device;
use crate::error::KvTypeUnavailable;
use crate::matrix::target::WeightTarget;
use crate::plan::options::DeviceOptions;

/// A device that was opened for a load.
pub(crate) struct LoadDevice {
    pub(crate) name: DeviceId,
    pub(crate) target: WeightTarget,
    /// Bytes that the load may allocate on the device.
    pub(crate) budget: u64,
    /// The device's weight among several.
    pub(crate) share: u64,
}

impl LoadDevice {
    /// Measures a device's free memory and applies its options. `matrices` are the stored types of the model's
    /// matrices, and `kv` is the type wanted for keys and values.
    pub(crate) fn of(
        asked: &DeviceOptions,
        device: Device,
        matrices: &[TensorType],
        kv: KvCacheType,
    ) -> Result<Self, KvTypeUnavailable> {
        let target = WeightTarget::of(device, matrices, kv)?;
        let device = &target.device;
        let free = device::free_memory(device).unwrap_or(u64::MAX);
        let (budget, share) = room(asked, free, device::context_bytes(device));
        Ok(Self { name: asked.device.clone(), target, budget, share })
    }
}

/// The bytes that may be allocated on a device, and its weight among several. Limit and share include all memory of the
/// process. The memory that it used before the first allocation is not free any more, and is included too.
fn room(asked: &DeviceOptions, free: u64, context: u64) -> (u64, u64) {
    let left = |bytes: ByteCount| bytes.0.saturating_sub(context);
    let budget = asked.limit.map_or(free, |limit| left(limit).min(free));
    (budget, asked.share.or(asked.limit).map_or(budget, left))
}

/// The layers that one device gets.
pub(crate) struct DevicePart {
    pub(crate) place: LoadDevice,
    pub(crate) layers: Range<usize>,
    /// Bytes of the device's weights if all of them are resident.
    pub(crate) weights: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_takes_before_it_allocates_counts_against_its_limit() {
        let asked = |share: Option<u64>, limit: Option<u64>| {
            let (share, limit) = (share.map(ByteCount), limit.map(ByteCount));
            DeviceOptions { device: DeviceId::Cuda(0), share, limit }
        };
        assert_eq!(room(&asked(None, Some(100)), 500, 30), (70, 70));
        assert_eq!(room(&asked(Some(200), Some(100)), 50, 30), (50, 170), "no more than is free");
        assert_eq!(room(&asked(Some(200), None), 500, 30), (500, 170), "what is free is free beside it");
        assert_eq!(room(&asked(None, Some(20)), 500, 30), (0, 0));
        assert_eq!(device::context_bytes(&Device::Cpu), 0);
    }
}
