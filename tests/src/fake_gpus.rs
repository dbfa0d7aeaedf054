//! GPUs that a test plugs and pulls: a fake of the driver's management library, which a coordinator loads like the real
//! one. Fake workers use the memory that they have leased. The C side is `fake_nvml/fake_nvml.c`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use model_boss_protocol::ByteCount;

use crate::boss::Launch;
use crate::sandbox::Sandbox;

/// The library's source.
const LIBRARY: &str = include_str!("../fake_nvml/fake_nvml.c");

/// The driver's error for a GPU that is gone (`NVML_ERROR_GPU_IS_LOST`).
pub const GPU_IS_LOST: i32 = 15;
/// The driver's error for an unknown fault (`NVML_ERROR_UNKNOWN`).
pub const UNKNOWN_ERROR: i32 = 999;

/// The library's functions that a coordinator calls at each probe; a test can make each fail or hang.
pub const CALLS: [&str; 5] = [
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
];

/// The way in which the driver lists processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listing {
    /// Each process is listed with its pid in this namespace.
    #[default]
    AsTheyAre = 0,
    /// The list has no processes, as in a container.
    Empty = 1,
    /// The list has pids of another namespace, as in a container.
    OtherNamespace = 2,
    /// The driver returns an error in place of the list.
    Refused = 3,
}

/// A machine's GPUs. Clones share the machine.
#[derive(Clone)]
pub struct FakeGpus {
    library: PathBuf,
    /// The file from which the library reads the machine's state.
    file: PathBuf,
    machine: Arc<Mutex<Machine>>,
}

#[derive(Default)]
struct Machine {
    /// GPUs in the driver's order: UUID, total memory, and memory of programs that the driver does not list.
    gpus: Vec<(String, ByteCount, ByteCount)>,
    /// The memory of each process on each GPU. The library omits processes that are gone.
    held: BTreeMap<(u32, String), ByteCount>,
    listing: Listing,
    keeps: bool,
    failing: BTreeMap<String, i32>,
    hanging: BTreeSet<String>,
}

impl FakeGpus {
    /// Builds the library in the sandbox, without GPUs. Returns `None`, and prints the reason, where there is no C
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

    /// Makes a program that is about to be started load the library.
    pub fn under(&self, launch: &mut Launch) {
        self.under_command(&mut launch.command);
    }

    /// Makes any program load the library.
    pub fn under_command(&self, command: &mut Command) {
        command.env("LD_LIBRARY_PATH", &self.library).env("FAKE_NVML", &self.file);
    }

    /// Plugs a GPU, as the last one that the driver lists.
    pub fn plug(&self, uuid: &str, memory: ByteCount) {
        self.change(|machine| machine.gpus.push((uuid.to_owned(), memory, ByteCount::ZERO)));
    }

    /// Pulls a GPU: it is no longer listed, and every query about it fails.
    pub fn unplug(&self, uuid: &str) {
        self.change(|machine| machine.gpus.retain(|(gpu, ..)| gpu != uuid));
    }

    /// Sets the memory of programs that the driver does not list.
    pub fn others_use(&self, uuid: &str, bytes: ByteCount) {
        self.change(|machine| machine.gpus.iter_mut().filter(|gpu| gpu.0 == uuid).for_each(|gpu| gpu.2 = bytes));
    }

    /// Sets the memory of a process, until it ends.
    pub fn uses(&self, pid: u32, uuid: &str, bytes: ByteCount) {
        self.change(|machine| {
            // Entries of ended processes are removed, so that a later process with the same pid does not inherit their
            // memory.
            machine.held.retain(|(pid, _), _| Path::new(&format!("/proc/{pid}")).exists());
            machine.held.insert((pid, uuid.to_owned()), bytes);
        });
    }

    /// Sets the way in which processes are listed.
    pub fn list_processes(&self, listing: Listing) {
        self.change(|machine| machine.listing = listing);
    }

    /// Sets whether the memory of ended processes stays in use, as after a driver's fault.
    pub fn keep_memory_of_the_gone(&self, keeps: bool) {
        self.change(|machine| machine.keeps = keeps);
    }

    /// Makes every call of this function fail with this code.
    pub fn fail(&self, function: &str, code: i32) {
        self.change(|machine| _ = machine.failing.insert(function.to_owned(), code));
    }

    /// Makes every call of this function hang.
    pub fn hang(&self, function: &str) {
        self.change(|machine| _ = machine.hanging.insert(function.to_owned()));
    }

    /// Makes all functions work again; calls that hang continue.
    pub fn mend(&self) {
        self.change(|machine| {
            machine.failing.clear();
            machine.hanging.clear();
        });
    }

    /// Changes the machine in one step, and writes its file.
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
        // The file is replaced in one step, as the library may read it at any moment.
        let new = self.file.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &self.file).unwrap();
    }
}
