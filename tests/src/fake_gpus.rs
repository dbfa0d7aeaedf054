//! GPUs that a test plugs and pulls: a stand-in for the driver's management library, under a coordinator that knows
//! nothing of it. Stand-in workers use the memory that they were leased. The C side is `fake_nvml/fake_nvml.c`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use model_boss_protocol::ByteCount;

use crate::boss::Launch;
use crate::sandbox::Sandbox;

/// The library.
const LIBRARY: &str = include_str!("../fake_nvml/fake_nvml.c");

/// What a driver answers that finds a GPU gone (`NVML_ERROR_GPU_IS_LOST`).
pub const GPU_IS_LOST: i32 = 15;
/// What a driver answers that cannot say what is wrong (`NVML_ERROR_UNKNOWN`).
pub const UNKNOWN_ERROR: i32 = 999;

/// The functions of the library that a coordinator calls at each look, by which a test makes them fail or hang.
pub const CALLS: [&str; 5] = [
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
];

/// How the driver lists processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listing {
    /// Each with its number here.
    #[default]
    AsTheyAre = 0,
    /// None, as in a container.
    Empty = 1,
    /// With numbers of another pid namespace, as in a container.
    OtherNamespace = 2,
    /// It refuses.
    Refused = 3,
}

/// The GPUs. Clones are the same machine.
#[derive(Clone)]
pub struct FakeGpus {
    /// Where the library is.
    library: PathBuf,
    /// What it reads.
    file: PathBuf,
    machine: Arc<Mutex<Machine>>,
}

#[derive(Default)]
struct Machine {
    /// In the order in which the driver lists them: identity, memory in all, and what other programs use.
    gpus: Vec<(String, ByteCount, ByteCount)>,
    /// What each process uses, by process and GPU. The library leaves out processes that are gone.
    held: BTreeMap<(u32, String), ByteCount>,
    listing: Listing,
    keeps: bool,
    failing: BTreeMap<String, i32>,
    hanging: BTreeSet<String>,
}

impl FakeGpus {
    /// Builds the library in the sandbox; no GPU is plugged yet. `None`, and a line that says so, where there is no C
    /// compiler.
    pub fn new(sandbox: &Sandbox) -> Option<Self> {
        if !cfg!(target_os = "linux") {
            return None;
        }
        let library = sandbox.path("driver");
        std::fs::create_dir_all(&library).unwrap();
        let source = library.join("fake_nvml.c");
        std::fs::write(&source, LIBRARY).unwrap();
        let mut compile = Command::new("cc");
        compile.args(["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-pthread", "-o"]);
        let compiled = match compile.arg(library.join("libnvidia-ml.so.1")).arg(&source).output() {
            Ok(compiled) => compiled,
            Err(error) => {
                eprintln!("passed over: there is no C compiler ({error})");
                return None;
            }
        };
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let gpus = Self { file: sandbox.path("driver/machine"), library, machine: Arc::default() };
        gpus.change(|_| {});
        Some(gpus)
    }

    /// Gives them to a program that is about to be started.
    pub fn under(&self, launch: &mut Launch) {
        launch.command.env("LD_LIBRARY_PATH", &self.library).env("FAKE_NVML", &self.file);
    }

    /// Plugs a GPU, as the last one that the driver lists.
    pub fn plug(&self, uuid: &str, memory: ByteCount) {
        self.change(|machine| machine.gpus.push((uuid.to_owned(), memory, ByteCount::ZERO)));
    }

    /// Pulls a GPU: it is not listed any more, and every question about it fails.
    pub fn unplug(&self, uuid: &str) {
        self.change(|machine| machine.gpus.retain(|(gpu, ..)| gpu != uuid));
    }

    /// What programs use there that the driver does not list.
    pub fn others_use(&self, uuid: &str, bytes: ByteCount) {
        self.change(|machine| machine.gpus.iter_mut().filter(|gpu| gpu.0 == uuid).for_each(|gpu| gpu.2 = bytes));
    }

    /// What a process uses there until it ends.
    pub fn uses(&self, pid: u32, uuid: &str, bytes: ByteCount) {
        self.change(|machine| {
            // A number that a later process gets must not hold what an earlier one had.
            machine.held.retain(|(pid, _), _| Path::new(&format!("/proc/{pid}")).exists());
            machine.held.insert((pid, uuid.to_owned()), bytes);
        });
    }

    /// How processes are listed from now on.
    pub fn list_processes(&self, listing: Listing) {
        self.change(|machine| machine.listing = listing);
    }

    /// Whether the memory of processes that are gone stays in use, as where a driver lost track.
    pub fn keep_memory_of_the_gone(&self, keeps: bool) {
        self.change(|machine| machine.keeps = keeps);
    }

    /// Every call of this function fails with this code from now on.
    pub fn fail(&self, function: &str, code: i32) {
        self.change(|machine| _ = machine.failing.insert(function.to_owned(), code));
    }

    /// Every call of this function hangs from now on.
    pub fn hang(&self, function: &str) {
        self.change(|machine| _ = machine.hanging.insert(function.to_owned()));
    }

    /// No call fails or hangs any more; those that hang go on.
    pub fn mend(&self) {
        self.change(|machine| {
            machine.failing.clear();
            machine.hanging.clear();
        });
    }

    /// Changes the machine in one step, as its file says it.
    fn change(&self, change: impl FnOnce(&mut Machine)) {
        let mut machine = self.machine.lock().unwrap();
        change(&mut machine);
        let mut text = format!("listing {}\nkeeps {}\n", machine.listing as i32, i32::from(machine.keeps));
        for (uuid, memory, others) in &machine.gpus {
            writeln!(text, "gpu {uuid} {} {}", memory.0, others.0).unwrap();
        }
        for ((pid, uuid), bytes) in &machine.held {
            writeln!(text, "process {uuid} {pid} {}", bytes.0).unwrap();
        }
        for (function, code) in &machine.failing {
            writeln!(text, "fail {function} {code}").unwrap();
        }
        for function in &machine.hanging {
            writeln!(text, "hang {function}").unwrap();
        }
        // In one step: the library reads at any moment.
        let new = self.file.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &self.file).unwrap();
    }
}
