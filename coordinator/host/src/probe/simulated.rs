//! A simulated machine (`serve --simulate`): its devices come from a file, the memory in use from reports of fake
//! workers. Edits of the file take effect at the next probe, so that a test can simulate other programs too. Only
//! processes that report have memory.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use model_boss_protocol::{ByteCount, DeviceId};
use serde::Deserialize;

use super::host::retention;
use super::{DeviceSample, Probe, Trouble};

/// The memory of a simulated host whose file gives none.
const HOST_MEMORY: ByteCount = ByteCount::gib(64);
/// Bytes kept free on each simulated GPU, as on a real one.
const GPU_RESERVE: ByteCount = ByteCount::mib(256);

/// Why the file that describes a machine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The file is absent or not readable.
    #[error("{0} cannot be read")]
    Read(PathBuf, #[source] std::io::Error),
    /// The file is not TOML, or describes no machine.
    #[error("{0} describes no machine")]
    Parse(PathBuf, #[source] toml::de::Error),
    /// The file parses, but its values make no sense.
    #[error("{0}: {1}")]
    Wrong(PathBuf, String),
}

/// A simulated machine and the memory that its workers hold. The probe and the watchers of workers share it.
#[derive(Debug)]
pub struct SimulatedMachine {
    file: PathBuf,
    /// The retention budget of `cpu`, where the operator sets one.
    cache: Option<ByteCount>,
    described: Mutex<Described>,
    held: Mutex<HashMap<u32, Vec<(DeviceId, ByteCount)>>>,
}

/// The last valid description, and the file's stamp at the last read.
#[derive(Debug)]
struct Described {
    machine: Description,
    stamp: Option<ScriptStamp>,
}

type ScriptStamp = (SystemTime, u64);

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Description {
    cpu: Option<SimulatedHost>,
    gpu: Vec<SimulatedGpu>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct SimulatedHost {
    memory: ByteCount,
    #[serde(default)]
    foreign: ByteCount,
    reserve: Option<ByteCount>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct SimulatedGpu {
    memory: ByteCount,
    name: Option<String>,
    uuid: Option<String>,
    /// The number of identical devices.
    #[serde(default = "one")]
    count: u32,
    /// Memory in use by programs that hold no lease.
    #[serde(default)]
    foreign: ByteCount,
    reserve: Option<ByteCount>,
    /// Whether the driver gives no answer, so that the memory in use is unknown.
    #[serde(default)]
    silent: bool,
    /// Whether the driver reports the memory in use, but not its processes.
    #[serde(default)]
    blind: bool,
}

fn one() -> u32 {
    1
}

impl SimulatedMachine {
    /// Reads the machine's description from `file`.
    pub fn read(file: &Path, cache: Option<ByteCount>) -> Result<Arc<Self>, SimulationError> {
        let described = Described { machine: Description::read(file)?, stamp: stamp(file) };
        let (file, described) = (file.to_owned(), Mutex::new(described));
        Ok(Arc::new(Self { file, cache, described, held: Mutex::default() }))
    }

    /// A probe of the simulated devices.
    pub fn probe(self: &Arc<Self>) -> Box<dyn Probe> {
        Box::new(SimulatedProbe(Arc::clone(self)))
    }

    /// Records the memory that a worker reports.
    pub fn holds(&self, pid: u32, held: Vec<(DeviceId, ByteCount)>) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).insert(pid, held);
    }

    /// Removes a worker that has ended, with its memory.
    pub fn gone(&self, pid: u32) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&pid);
    }

    /// The description as the file has it now; an invalid file leaves the last valid description.
    fn description(&self) -> Description {
        let mut described = self.described.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamp(&self.file);
        if now != described.stamp {
            described.stamp = now;
            match Description::read(&self.file) {
                Ok(machine) => described.machine = machine,
                Err(error) => {
                    tracing::warn!("the simulated machine is unchanged: {}", model_boss_protocol::chain(&error));
                }
            }
        }
        described.machine.clone()
    }
}

impl Description {
    fn read(file: &Path) -> Result<Self, SimulationError> {
        let text = std::fs::read_to_string(file).map_err(|error| SimulationError::Read(file.to_owned(), error))?;
        let machine: Self = toml::from_str(&text).map_err(|error| SimulationError::Parse(file.to_owned(), error))?;
        let wrong = |what: String| Err(SimulationError::Wrong(file.to_owned(), what));
        let mut uuids = BTreeMap::new();
        for (number, gpu) in machine.gpu.iter().enumerate() {
            let place = format!("[[gpu]] number {}", number + 1);
            if !(1..=64).contains(&gpu.count) {
                return wrong(format!("{place}: 'count' must be 1 to 64"));
            }
            if gpu.memory <= gpu.reserve.unwrap_or(GPU_RESERVE) {
                return wrong(format!("{place}: 'memory' {} is not more than what is kept free", gpu.memory));
            }
            if gpu.uuid.is_some() && gpu.count > 1 {
                return wrong(format!("{place}: 'uuid' names one GPU; leave it out, or leave out 'count'"));
            }
            if let Some(other) = gpu.uuid.as_ref().and_then(|uuid| uuids.insert(uuid.clone(), number + 1)) {
                return wrong(format!("{place}: its 'uuid' is that of number {other}"));
            }
        }
        Ok(machine)
    }

    fn samples(&self, cache: Option<ByteCount>, held: &HashMap<u32, Vec<(DeviceId, ByteCount)>>) -> Vec<DeviceSample> {
        let host =
            self.cpu.clone().unwrap_or(SimulatedHost { memory: HOST_MEMORY, foreign: ByteCount::ZERO, reserve: None });
        let reserve = host.reserve.unwrap_or_else(|| host.memory.scaled(0.1));
        let mut cpu = sample(DeviceId::Cpu, "played CPU", None, (host.memory, reserve, host.foreign), held);
        cpu.retention = retention(cache, cpu.capacity);
        let mut samples = vec![cpu];
        let all = self.gpu.iter().flat_map(|gpu| std::iter::repeat_n(gpu, gpu.count as usize));
        for (index, gpu) in (0_u32..).zip(all) {
            let name = gpu.name.as_deref().unwrap_or("played GPU");
            let uuid = gpu.uuid.clone().unwrap_or_else(|| format!("GPU-played-{index}"));
            let sizes = (gpu.memory, gpu.reserve.unwrap_or(GPU_RESERVE), gpu.foreign);
            let mut sample = sample(DeviceId::Cuda(index), name, Some(uuid), sizes, held);
            if gpu.silent {
                sample = sample.without_figures(Trouble::Unreadable("its driver does not answer".to_owned()));
            }
            if gpu.blind {
                sample.told_apart = false;
                sample.processes.clear();
            }
            samples.push(sample);
        }
        samples
    }
}

fn sample(
    device: DeviceId,
    name: &str,
    uuid: Option<String>,
    (capacity, reserve, foreign): (ByteCount, ByteCount, ByteCount),
    held: &HashMap<u32, Vec<(DeviceId, ByteCount)>>,
) -> DeviceSample {
    let on_device = |parts: &[(DeviceId, ByteCount)]| -> ByteCount {
        parts.iter().filter(|(part, _)| *part == device).map(|(_, bytes)| *bytes).sum()
    };
    let processes: Vec<(u32, ByteCount)> = held
        .iter()
        .map(|(pid, parts)| (*pid, on_device(parts)))
        .filter(|(_, bytes)| *bytes > ByteCount::ZERO)
        .collect();
    let used = foreign + processes.iter().map(|(_, bytes)| *bytes).sum();
    DeviceSample {
        device,
        name: name.to_owned(),
        uuid,
        capacity: Some(capacity),
        reserve,
        used: Some(used.min(capacity)),
        told_apart: true,
        processes,
        retention: None,
        trouble: None,
        exclusive: false,
        sampled_at: Instant::now(),
    }
}

fn stamp(file: &Path) -> Option<ScriptStamp> {
    let about = std::fs::metadata(file).ok()?;
    Some((about.modified().ok()?, about.len()))
}

struct SimulatedProbe(Arc<SimulatedMachine>);

impl Probe for SimulatedProbe {
    fn sample(&mut self, _leased: &[u32]) -> Vec<DeviceSample> {
        let description = self.0.description();
        description.samples(self.0.cache, &self.0.held.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(text: &str) -> (tempfile::TempDir, Result<Arc<SimulatedMachine>, SimulationError>) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gpus.toml");
        std::fs::write(&file, text).unwrap();
        let machine = SimulatedMachine::read(&file, None);
        (folder, machine)
    }

    #[test]
    fn four_gpus_in_three_lines_and_what_workers_hold_shows() {
        let (_folder, machine) = machine("[[gpu]]\nmemory = \"24GiB\"\ncount = 4\nforeign = \"1GiB\"\n");
        let machine = machine.unwrap();
        let parts = vec![(DeviceId::Cuda(1), ByteCount::gib(3)), (DeviceId::Cuda(2), ByteCount::gib(5))];
        machine.holds(70, parts);
        let mut probe = machine.probe();
        let samples = probe.sample(&[]);
        let used: Vec<_> = samples.iter().map(|sample| (sample.device.to_string(), sample.used.unwrap())).collect();
        let gib = |device: &str, n: u64| (device.to_owned(), ByteCount::gib(n));
        assert_eq!(used, [gib("cpu", 0), gib("cuda:0", 1), gib("cuda:1", 4), gib("cuda:2", 6), gib("cuda:3", 1)]);
        assert_eq!(samples[2].processes, [(70, ByteCount::gib(3))]);
        let uuids: std::collections::BTreeSet<_> = samples.iter().filter_map(|sample| sample.uuid.clone()).collect();
        assert_eq!(uuids.len(), 4);
        machine.gone(70);
        assert_eq!(probe.sample(&[])[2].used, Some(ByteCount::gib(1)));
    }

    #[test]
    fn an_edit_counts_and_a_bad_one_changes_nothing() {
        let (folder, machine) = machine("[[gpu]]\nmemory = \"24GiB\"\n");
        let mut probe = machine.unwrap().probe();
        assert_eq!(probe.sample(&[])[1].used, Some(ByteCount::ZERO));
        let write = |text: &str| std::fs::write(folder.path().join("gpus.toml"), text).unwrap();
        write("[[gpu]]\nmemory = \"24GiB\"\nforeign = \"20GiB\"\n");
        assert_eq!(probe.sample(&[])[1].used, Some(ByteCount::gib(20)));
        write("[[gpu]]\nmemory = \"much\"\n");
        assert_eq!(probe.sample(&[])[1].used, Some(ByteCount::gib(20)));
        write("[[gpu]]\nmemory = \"24GiB\"\nsilent = true\n");
        assert_eq!(probe.sample(&[])[1].used, None);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("[[gpu]]\n", "memory"),
            ("[[gpu]]\nmemory = \"24GiB\"\nmemry = 1\n", "memry"),
            ("[[gpu]]\nmemory = \"1MiB\"\n", "kept free"),
            ("[[gpu]]\nmemory = \"24GiB\"\ncount = 0\n", "count"),
            ("[[gpu]]\nmemory = \"24GiB\"\ncount = 2\nuuid = \"GPU-1\"\n", "uuid"),
            ("[[gpu]]\nmemory = \"24GiB\"\nuuid = \"x\"\n[[gpu]]\nmemory = \"24GiB\"\nuuid = \"x\"\n", "number 1"),
        ] {
            let error = model_boss_protocol::chain(&machine(text).1.unwrap_err());
            assert!(error.contains(word) && error.contains("gpus.toml"), "{text}: {error}");
        }
        assert!(SimulatedMachine::read(Path::new("nowhere.toml"), None).is_err());
    }
}
