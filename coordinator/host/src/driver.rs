//! Facts about NVIDIA's driver that no placement needs, for operators who look for a fault. Reading them changes
//! nothing.

use std::sync::mpsc;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// The longest wait for the driver; without persistence mode it takes seconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// The state of the driver's management library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverFacts {
    /// The library does not exist.
    Absent,
    /// The library exists and does not work, for this reason.
    Broken(String),
    /// The library works.
    Works {
        /// The driver's version, such as `580.65.06`.
        version: String,
        /// The newest version of CUDA that the driver serves, such as 13.0.
        cuda: Option<(i32, i32)>,
        /// The GPUs, in the driver's order.
        gpus: Vec<GpuFacts>,
    },
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuFacts {
    /// The name.
    pub name: String,
    /// The UUID.
    pub uuid: String,
    /// The compute capability, as 90 for 9.0.
    pub capability: Option<u32>,
    /// Whether the driver tells the memory of processes apart.
    pub tells_processes: bool,
    /// Whether only one process may use the GPU at a time.
    pub is_exclusive: bool,
    /// Whether the GPU is divided (MIG).
    pub is_divided: bool,
    /// Whether the driver keeps the GPU ready while no program uses it.
    pub persists: Option<bool>,
    /// Errors of memory that could not be corrected, since the driver started.
    pub memory_errors: u64,
    /// Why the GPU gives no answers.
    pub trouble: Option<String>,
}

impl DriverFacts {
    /// Asks the driver, on a thread of its own: a driver that hangs must not hang the caller.
    pub fn read() -> Self {
        let (reply, answer) = mpsc::sync_channel(1);
        let asked = std::thread::Builder::new().name("driver".into()).spawn(move || {
            // Without a receiver the caller has given up.
            let _ = reply.send(ask());
        });
        match asked {
            Err(error) => Self::Broken(format!("no thread could be started to ask it: {error}")),
            Ok(_) => answer
                .recv_timeout(PATIENCE)
                .unwrap_or_else(|_| Self::Broken(format!("it has not answered for {} s", PATIENCE.as_secs()))),
        }
    }
}

fn ask() -> DriverFacts {
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        Err(NvmlError::LibloadingError(_)) => return DriverFacts::Absent,
        Err(error) => return DriverFacts::Broken(error.to_string()),
    };
    let version = nvml.sys_driver_version().unwrap_or_else(|_| "of unknown version".to_owned());
    let cuda = nvml.sys_cuda_driver_version().ok().map(|number| (number / 1000, number % 1000 / 10));
    match nvml.device_count() {
        Ok(count) => DriverFacts::Works { version, cuda, gpus: (0..count).map(|index| gpu(&nvml, index)).collect() },
        Err(error) => DriverFacts::Broken(format!("it does not say how many GPUs there are: {error}")),
    }
}

fn gpu(nvml: &Nvml, index: u32) -> GpuFacts {
    use nvml_wrapper::enum_wrappers::device::{ComputeMode, EccCounter, MemoryError};

    let device = match nvml.device_by_index(index) {
        Ok(device) => device,
        Err(error) => return GpuFacts { trouble: Some(error.to_string()), ..GpuFacts::default() },
    };
    let capability = device.cuda_compute_capability().ok();
    let capability = capability.and_then(|found| u32::try_from(found.major * 10 + found.minor).ok());
    GpuFacts {
        name: device.name().unwrap_or_else(|_| "NVIDIA GPU".to_owned()),
        uuid: device.uuid().unwrap_or_default(),
        capability,
        tells_processes: device.running_compute_processes().is_ok(),
        is_exclusive: matches!(
            device.compute_mode(),
            Ok(ComputeMode::ExclusiveProcess | ComputeMode::ExclusiveThread | ComputeMode::Prohibited)
        ),
        is_divided: device.mig_mode().is_ok_and(|mode| mode.current == 1),
        persists: device.is_in_persistent_mode().ok(),
        memory_errors: device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).unwrap_or(0),
        trouble: device.memory_info().err().map(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_1_a_machine_says_whether_it_has_a_driver() {
        match DriverFacts::read() {
            DriverFacts::Absent => {}
            DriverFacts::Broken(why) => assert!(!why.is_empty()),
            DriverFacts::Works { version, gpus, .. } => assert!(!version.is_empty(), "{gpus:?}"),
        }
    }
}
