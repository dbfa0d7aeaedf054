//! NVIDIA GPUs through the driver's management library, which is loaded at run time: a machine without it simply has none.

use std::time::Instant;

use model_boss_protocol::{ByteCount, DeviceId};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

use super::{DeviceSample, Probe};

/// Kept free on each GPU for what appears between a decision and a load.
const RESERVE: ByteCount = ByteCount::mib(256);

/// Reads the driver.
pub(crate) struct NvidiaProbe {
    nvml: Nvml,
}

/// Why there are no NVIDIA GPUs here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoNvidia {
    /// The usual case on a machine without such a GPU.
    #[error("no NVIDIA driver is installed")]
    NoDriver,
    /// There is a library, but it does not work.
    #[error("the NVIDIA driver does not work: {0}")]
    Broken(NvmlError),
}

impl NvidiaProbe {
    /// Loads the library.
    pub(crate) fn new() -> Result<Self, NoNvidia> {
        match Nvml::init() {
            Ok(nvml) => Ok(Self { nvml }),
            Err(NvmlError::LibloadingError(_)) => Err(NoNvidia::NoDriver),
            Err(error) => Err(NoNvidia::Broken(error)),
        }
    }
}

impl Probe for NvidiaProbe {
    fn sample(&mut self, _leased: &[u32]) -> Vec<DeviceSample> {
        let count = self.nvml.device_count().unwrap_or_else(|error| {
            tracing::warn!(%error, "the NVIDIA driver does not say how many GPUs there are");
            0
        });
        // The library counts in PCI bus order, as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID.
        (0..count).filter_map(|index| Some(sample(index, &self.nvml.device_by_index(index).ok()?))).collect()
    }
}

fn sample(index: u32, gpu: &Device<'_>) -> DeviceSample {
    let sampled_at = Instant::now();
    let memory = gpu.memory_info().ok();
    let by_process = by_process(gpu);
    DeviceSample {
        device: DeviceId::Cuda(index),
        name: gpu.name().unwrap_or_else(|_| "NVIDIA GPU".to_owned()),
        uuid: gpu.uuid().ok(),
        capacity: memory.as_ref().map(|memory| ByteCount(memory.total)),
        reserve: RESERVE,
        used: memory.as_ref().map(|memory| ByteCount(memory.used)),
        told_apart: by_process.is_some(),
        processes: by_process.unwrap_or_default(),
        retention: None,
        exclusive: false,
        sampled_at,
    }
}

/// What each process holds here; `None` where the driver does not tell processes apart: it refuses the question, or names
/// a process and not its memory.
fn by_process(gpu: &Device<'_>) -> Option<Vec<(u32, ByteCount)>> {
    let held = |process: ProcessInfo| match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some((process.pid, ByteCount(bytes))),
        UsedGpuMemory::Unavailable => None,
    };
    gpu.running_compute_processes().ok()?.into_iter().map(held).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_driver_says_so_and_one_with_it_knows_its_gpus() {
        match NvidiaProbe::new() {
            Err(error) => assert!(!error.to_string().is_empty()),
            Ok(mut probe) => {
                for (index, sample) in probe.sample(&[]).into_iter().enumerate() {
                    assert_eq!(sample.device, DeviceId::Cuda(u32::try_from(index).unwrap()));
                    assert!(sample.uuid.is_some_and(|uuid| uuid.starts_with("GPU-") || uuid.starts_with("MIG-")));
                    assert!(sample.capacity > sample.used && sample.used.is_some(), "{:?}", sample.capacity);
                }
            }
        }
    }
}
