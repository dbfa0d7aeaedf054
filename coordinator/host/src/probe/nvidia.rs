//! NVIDIA GPUs through the driver's management library, which is loaded at run time: a machine without the library has
//! no such GPUs.
//!
//! A GPU is identified by its UUID. The driver renumbers its GPUs when one is pulled; here each GPU keeps the number
//! under which it was first seen.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use model_boss_protocol::{ByteCount, DeviceId};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

use super::{DeviceSample, Probe, Trouble};

/// Bytes kept free on each GPU for memory that is taken between a decision and a load.
const RESERVE: ByteCount = ByteCount::mib(256);
/// The longest wait for the driver at the start; a slower one continues in the background. Without persistence mode it
/// takes seconds.
const START_LIMIT: Duration = Duration::from_secs(5);
/// The pause before a failed driver is initialised again.
const BEGIN_AGAIN: Duration = Duration::from_secs(1);

/// The probe of the driver.
pub struct NvidiaProbe {
    driver: NvmlState,
    /// Every GPU that was ever seen, with its last sample.
    known: Vec<DeviceSample>,
}

/// The state of the driver's library.
enum NvmlState {
    /// Initialisation runs and has not ended.
    Begins(Receiver<Result<Nvml, NvmlError>>, Instant),
    Works(Box<Nvml>),
    /// The library failed as a whole, with this message.
    Fails(String, Instant),
}

/// Why there are no NVIDIA GPUs here.
#[derive(Debug, thiserror::Error)]
pub enum NoNvidia {
    /// The library does not exist, as on most machines without such a GPU.
    #[error("no NVIDIA driver is installed")]
    NoDriver,
    /// The library exists, but does not work.
    #[error("the NVIDIA driver does not work: {0}")]
    Broken(NvmlError),
    /// The library exists, but does not answer.
    #[error("the NVIDIA driver has not answered for {} s", START_LIMIT.as_secs())]
    Hangs,
}

impl NvidiaProbe {
    /// Loads the library. A driver that fails or hangs is queried again at each probe, and the error has the reason why
    /// there are no GPUs yet. Without a library there is no probe.
    pub fn start() -> (Option<Self>, Option<NoNvidia>) {
        let begun = begin();
        let (driver, why) = match begun.recv_timeout(START_LIMIT) {
            Ok(Ok(nvml)) => (NvmlState::Works(Box::new(nvml)), None),
            Ok(Err(NvmlError::LibloadingError(_))) => return (None, Some(NoNvidia::NoDriver)),
            Ok(Err(error)) => (NvmlState::Fails(error.to_string(), Instant::now()), Some(NoNvidia::Broken(error))),
            Err(RecvTimeoutError::Timeout) => (NvmlState::Begins(begun, Instant::now()), Some(NoNvidia::Hangs)),
            Err(RecvTimeoutError::Disconnected) => return (None, Some(NoNvidia::NoDriver)),
        };
        (Some(Self { driver, known: Vec::new() }), why)
    }

    /// The library, if it works by now.
    fn begun(&mut self) -> Result<&Nvml, String> {
        if let NvmlState::Fails(_, since) = &self.driver
            && since.elapsed() >= BEGIN_AGAIN
        {
            self.driver = NvmlState::Begins(begin(), Instant::now());
        }
        if let NvmlState::Begins(begun, since) = &self.driver {
            // A working driver answers as quickly as to any other question; otherwise it hangs.
            match begun.recv_timeout(BEGIN_AGAIN / 4) {
                Ok(Ok(nvml)) => self.driver = NvmlState::Works(Box::new(nvml)),
                Ok(Err(error)) => self.driver = NvmlState::Fails(error.to_string(), Instant::now()),
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = since.elapsed().as_secs_f64().ceil();
                    return Err(format!("the NVIDIA driver was asked to begin {seconds} s ago and has not answered"));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.driver = NvmlState::Fails("its thread has ended".to_owned(), Instant::now());
                }
            }
        }
        match &self.driver {
            NvmlState::Works(nvml) => Ok(nvml),
            NvmlState::Fails(why, _) => Err(format!("the NVIDIA driver does not work: {why}")),
            NvmlState::Begins(..) => Err("the NVIDIA driver begins".to_owned()),
        }
    }

    /// Every known GPU with unknown figures, while none can be read.
    fn unreadable(&self, why: &str) -> Vec<DeviceSample> {
        let forget = |gpu: &DeviceSample| gpu.without_figures(Trouble::Unreadable(why.to_owned()));
        self.known.iter().map(forget).collect()
    }

    /// The number of a GPU: its earlier number, else the driver's, else the next free one.
    fn number(&self, uuid: Option<&str>, index: u32) -> DeviceId {
        let had = |gpu: &&DeviceSample| uuid.is_some() && gpu.uuid.as_deref() == uuid;
        if let Some(gpu) = self.known.iter().find(had) {
            return gpu.device.clone();
        }
        let free = |number: &u32| self.known.iter().all(|gpu| gpu.device != DeviceId::Cuda(*number));
        DeviceId::Cuda([index].into_iter().chain(0..=u32::MAX).find(free).unwrap_or(index))
    }
}

/// Loads the library on a thread of its own, so that a library that hangs blocks only that thread.
fn begin() -> Receiver<Result<Nvml, NvmlError>> {
    let (reply, begun) = mpsc::sync_channel(1);
    // If the thread cannot be started the channel closes, which the receiver treats as a failure.
    let _ = std::thread::Builder::new().name("nvml".into()).spawn(move || {
        let _ = reply.send(Nvml::init());
    });
    begun
}

impl Probe for NvidiaProbe {
    fn sample(&mut self, _leased: &[u32]) -> Vec<DeviceSample> {
        let listed = match self.begun() {
            Ok(nvml) => list(nvml),
            Err(why) => return self.unreadable(&why),
        };
        let (gpus, refused) = match listed {
            Ok(listed) => listed,
            Err(error) => {
                // The library itself may not match an updated driver: it is loaded anew.
                let why = format!("it does not say how many GPUs there are: {error}");
                self.driver = NvmlState::Fails(why.clone(), Instant::now());
                return self.unreadable(&format!("the NVIDIA driver does not work: {why}"));
            }
        };
        let mut samples: Vec<DeviceSample> = Vec::with_capacity(gpus.len());
        for (index, gpu) in gpus {
            let device = self.number(gpu.uuid.as_deref(), index);
            let known = self.known.iter_mut().find(|known| known.device == device);
            let mut gpu = DeviceSample { device, ..gpu };
            match (known, &gpu.trouble) {
                (Some(known), None) => known.clone_from(&gpu),
                // Constant properties of the GPU are kept when a probe fails.
                (Some(known), Some(trouble)) => gpu = known.without_figures(trouble.clone()),
                (None, _) => self.known.push(gpu.clone()),
            }
            samples.push(gpu);
        }
        if let Some(why) = refused {
            // One of the missing GPUs may be the one that gave no name.
            let missing = self.known.iter().filter(|known| samples.iter().all(|seen| seen.device != known.device));
            let missing: Vec<_> = missing.map(|gpu| gpu.without_figures(Trouble::Unreadable(why.clone()))).collect();
            samples.extend(missing);
        }
        samples
    }

    fn problem(&self) -> Option<String> {
        match &self.driver {
            NvmlState::Begins(_, since) => {
                Some(format!("the NVIDIA driver has not answered for {:.0} s", since.elapsed().as_secs_f64().ceil()))
            }
            // A library without a driver is no fault if no GPU was ever seen.
            NvmlState::Fails(why, _) if !self.known.is_empty() => {
                Some(format!("the NVIDIA driver does not work: {why}"))
            }
            NvmlState::Fails(..) | NvmlState::Works(_) => None,
        }
    }
}

/// The GPUs that the driver lists, with its numbers, and the reason why one gave no name. A GPU that the driver calls
/// lost counts as not listed.
#[expect(clippy::type_complexity, reason = "read at one place, a few lines below")]
fn list(nvml: &Nvml) -> Result<(Vec<(u32, DeviceSample)>, Option<String>), NvmlError> {
    let mut gpus = Vec::new();
    let mut refused = None;
    for index in 0..nvml.device_count()? {
        match nvml.device_by_index(index).and_then(|gpu| sample(&gpu)) {
            Ok(gpu) => gpus.push((index, gpu)),
            Err(NvmlError::GpuLost) => {}
            Err(error) => refused = Some(format!("the driver refuses a question: {error}")),
        }
    }
    Ok((gpus, refused))
}

/// One GPU's sample. The library counts in PCI bus order, as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID.
fn sample(gpu: &Device<'_>) -> Result<DeviceSample, NvmlError> {
    let sampled_at = Instant::now();
    let uuid = gpu.uuid()?;
    let name = match gpu.name() {
        Err(NvmlError::GpuLost) => return Err(NvmlError::GpuLost),
        name => name.unwrap_or_else(|_| "NVIDIA GPU".to_owned()),
    };
    let read = gpu.memory_info().and_then(|memory| Ok((memory, by_process(gpu)?)));
    let (memory, processes, trouble) = match read {
        Ok((memory, processes)) => (Some(memory), processes, None),
        Err(NvmlError::GpuLost) => return Err(NvmlError::GpuLost),
        Err(error) => (None, Some(Vec::new()), Some(Trouble::Unreadable(format!("the driver refuses: {error}")))),
    };
    Ok(DeviceSample {
        device: DeviceId::Auto,
        name,
        uuid: Some(uuid),
        capacity: memory.as_ref().map(|memory| ByteCount(memory.total)),
        reserve: RESERVE,
        used: memory.as_ref().map(|memory| ByteCount(memory.used)),
        told_apart: processes.is_some(),
        processes: processes.unwrap_or_default(),
        retention: None,
        trouble,
        exclusive: false,
        sampled_at,
    })
}

/// The memory of each process on this GPU. Returns `None` if the driver does not tell processes apart: the query is
/// unknown or forbidden, or a process has no memory in it. Any other failure concerns this probe only.
fn by_process(gpu: &Device<'_>) -> Result<Option<Vec<(u32, ByteCount)>>, NvmlError> {
    let mut held: BTreeMap<u32, ByteCount> = BTreeMap::new();
    let computing = match gpu.running_compute_processes() {
        Ok(processes) => processes,
        Err(
            NvmlError::NotSupported
            | NvmlError::NoPermission
            | NvmlError::FunctionNotFound
            | NvmlError::FailedToLoadSymbol(_),
        ) => return Ok(None),
        Err(error) => return Err(error),
    };
    // Graphics processes hold memory too, and are listed separately where the driver lists them.
    for ProcessInfo { pid, used_gpu_memory, .. } in
        computing.into_iter().chain(gpu.running_graphics_processes().unwrap_or_default())
    {
        let UsedGpuMemory::Used(bytes) = used_gpu_memory else { return Ok(None) };
        // A process that computes and draws is listed twice.
        let entry = held.entry(pid).or_default();
        *entry = (*entry).max(ByteCount(bytes));
    }
    Ok(Some(held.into_iter().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dm_3_a_machine_without_the_driver_says_so_and_one_with_it_knows_its_gpus() {
        match NvidiaProbe::start() {
            (_, Some(error)) => assert!(!error.to_string().is_empty()),
            (None, None) => panic!("no probe, and no reason"),
            (Some(mut probe), None) => {
                for (index, sample) in probe.sample(&[]).into_iter().enumerate() {
                    assert_eq!(sample.device, DeviceId::Cuda(u32::try_from(index).unwrap()));
                    assert!(sample.uuid.is_some_and(|uuid| uuid.starts_with("GPU-") || uuid.starts_with("MIG-")));
                    assert!(sample.capacity > sample.used && sample.used.is_some(), "{:?}", sample.capacity);
                }
            }
        }
    }
}
