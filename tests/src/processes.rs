//! Processes as `/proc` shows them: descendants, processes with a sandbox's mark, and processes that are gone.

use std::collections::BTreeSet;
use std::fs;

/// The environment variable that marks every process that a sandbox starts, directly or not.
pub(crate) const MARK_VARIABLE: &str = "SANDBOX_MARK";

/// A set of living processes, by pid and start time, so that a reused pid is not mistaken for an old process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processes(BTreeSet<(u32, u64)>);

impl Processes {
    /// Every living process with this mark in its environment.
    pub fn marked(mark: &str) -> Self {
        let entry = format!("{MARK_VARIABLE}={mark}");
        Self::all(|pid| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|text| text == entry.as_bytes()))
        })
    }

    /// Every living descendant of `ancestor`, without `ancestor` itself.
    pub fn below(ancestor: u32) -> Self {
        Self::all(|pid| {
            let mut at = pid;
            while let Some(parent) = Stat::of(at).map(|stat| stat.parent).filter(|parent| *parent > 1) {
                if parent == ancestor {
                    return true;
                }
                at = parent;
            }
            false
        })
    }

    /// The oldest child of a process, that child's oldest child, and so on.
    pub fn line_below(ancestor: u32) -> Vec<u32> {
        let mut line = Vec::new();
        let mut at = ancestor;
        loop {
            let children = Self::all(|pid| Stat::of(pid).is_some_and(|stat| stat.parent == at));
            let Some((pid, _)) = children.0.into_iter().min_by_key(|(pid, start)| (*start, *pid)) else { return line };
            line.push(pid);
            at = pid;
        }
    }

    /// The union of both sets.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// The set without one process.
    #[must_use]
    pub fn without(mut self, pid: u32) -> Self {
        self.0.retain(|(other, _)| *other != pid);
        self
    }

    /// The processes that are still alive.
    #[must_use]
    pub fn alive(&self) -> Self {
        Self(self.0.iter().copied().filter(|(pid, start)| Stat::of(*pid).is_some_and(|s| s.start == *start)).collect())
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The pids of the processes.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|(pid, _)| *pid)
    }

    /// The text `pid (name)` for each, for a failed test's message.
    pub fn describe(&self) -> String {
        let one =
            |pid| format!("{pid} ({})", fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim());
        self.pids().map(one).collect::<Vec<_>>().join(", ")
    }

    fn all(keep: impl Fn(u32) -> bool) -> Self {
        let entries = fs::read_dir("/proc").expect("/proc is there").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Self(pids.filter(|pid| keep(*pid)).filter_map(|pid| Some((pid, Stat::of(pid)?.start))).collect())
    }
}

/// The needed fields of `/proc/PID/stat`; `None` for a process that is gone or a zombie.
struct Stat {
    parent: u32,
    start: u64,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may itself contain spaces and parentheses.
        let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
        let (state, parent, start) = (fields.first()?, fields.get(1)?, fields.get(19)?);
        (!matches!(*state, "Z" | "X")).then_some(Self { parent: parent.parse().ok()?, start: start.parse().ok()? })
    }
}

/// The most memory in use by a process since this value was made.
#[derive(Clone, Copy, Debug)]
pub struct PeakMemory {
    pid: u32,
    before: u64,
}

impl PeakMemory {
    /// Starts to measure from the process's current use.
    pub fn of(pid: u32) -> Self {
        // The write resets the high-water mark (man 5 proc).
        fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("our own child's mark can be reset");
        Self { pid, before: status_kib(pid, "VmRSS") }
    }

    /// The growth at the highest moment, in MiB.
    pub fn growth_mib(&self) -> u64 {
        status_kib(self.pid, "VmHWM").saturating_sub(self.before) >> 10
    }
}

fn status_kib(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).expect("the kernel says how much")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_below_us_until_it_is_gone() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let below = Processes::below(std::process::id());
        assert!(below.pids().any(|pid| pid == child.id()), "{}", below.describe());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!below.alive().pids().any(|pid| pid == child.id()));
    }
}
