//! A control group for the memory of one measurement, version 1 or 2. It limits the programs in it and measures their
//! memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use model_boss_protocol::ByteCount;

/// The file names of one version.
struct Version {
    root: &'static str,
    limit: &'static str,
    peak: &'static str,
    /// The page cache's key in `memory.stat`.
    cache: &'static str,
}

const VERSIONS: [Version; 2] = [
    Version {
        root: "/sys/fs/cgroup/memory",
        limit: "memory.limit_in_bytes",
        peak: "memory.max_usage_in_bytes",
        cache: "cache",
    },
    Version { root: "/sys/fs/cgroup", limit: "memory.max", peak: "memory.peak", cache: "file" },
];

/// The group. It is removed when this value is dropped.
pub(crate) struct Group {
    folder: PathBuf,
    version: &'static Version,
}

/// The memory that a program used, in bytes; `None` where the kernel does not report it.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(crate) struct Memory {
    /// The most at one time, page cache included.
    pub(crate) peak_bytes: Option<u64>,
    /// The page cache of files when the program ended.
    pub(crate) cache_bytes: Option<u64>,
}

impl Group {
    pub(crate) fn new(limit: ByteCount) -> Result<Self, String> {
        let name = format!("model-boss-bench-{}-{}", std::process::id(), limit.0);
        let mut why = String::new();
        for version in &VERSIONS {
            let folder = Path::new(version.root).join(&name);
            let made =
                fs::create_dir(&folder).and_then(|()| fs::write(folder.join(version.limit), limit.0.to_string()));
            match made {
                Ok(()) => return Ok(Self { folder, version }),
                Err(error) => {
                    let _ = fs::remove_dir(&folder);
                    why = format!("{}: {error}", folder.display());
                }
            }
        }
        Err(why)
    }

    /// A program that starts in the group.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        command.arg(self.folder.join("cgroup.procs")).arg(program);
        command
    }

    /// Runs the program to its end. Pages that other groups have cached would not be charged to it, so the caches are
    /// dropped before.
    pub(crate) fn run(&self, mut command: Command) -> Result<(String, Memory), String> {
        let _ = fs::write("/proc/sys/vm/drop_caches", "3");
        // Writing resets the count in version 1. In version 2 not every user may write, and then the peak is that of
        // all runs.
        let _ = fs::write(self.folder.join(self.version.peak), "0");
        let output = command.output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
        }
        let memory = Memory { peak_bytes: self.peak(), cache_bytes: self.cache() };
        Ok((String::from_utf8_lossy(&output.stdout).into_owned(), memory))
    }

    fn peak(&self) -> Option<u64> {
        fs::read_to_string(self.folder.join(self.version.peak)).ok()?.trim().parse().ok()
    }

    fn cache(&self) -> Option<u64> {
        let stat = fs::read_to_string(self.folder.join("memory.stat")).ok()?;
        stat.lines().find_map(|line| line.strip_prefix(self.version.cache)?.trim().parse().ok())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}
