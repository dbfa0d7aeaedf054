//! Process trees: whose child a process is, whether it is gone with all that it left behind, and which pid namespaces
//! can be seen from here. Looks at `/proc`, and knows no leases.

use std::collections::BTreeSet;
use std::fs;

use model_boss_lease::Process;
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::host::Stat;

/// The initial pid namespace, in which every process of the host is seen (PROC_PID_INIT_INO of the kernel).
const INITIAL_NAMESPACE: &str = "pid:[4026531836]";

/// A chain of parents longer than this is not followed.
const GENERATIONS: usize = 64;

/// The processes of a host, as they are at each call.
pub struct ProcessTree {
    source: Box<dyn Source>,
    namespace: String,
}

/// Where processes are looked up.
trait Source {
    /// What the kernel says of a process.
    fn stat(&self, pid: u32) -> Option<Stat>;
    /// Whether there is a process of this number at all, seen or hidden.
    fn exists(&self, pid: u32) -> bool;
    /// Every process that can be seen; `None` when that cannot be told.
    fn all(&self) -> Option<Vec<u32>>;
    /// The pid namespace of a process and its number there; `None` when that is not to be known.
    fn inner(&self, pid: u32) -> Option<(String, u32)>;
}

impl ProcessTree {
    /// The processes that this process can see, whose pid namespace is `namespace`.
    pub fn of_this_host(namespace: String) -> Self {
        Self { source: Box::new(Proc), namespace }
    }

    /// Every living process of a session, its leader included.
    pub fn session(leader: u32) -> Vec<u32> {
        let all = Proc.all().unwrap_or_default().into_iter();
        all.filter(|pid| Stat::of(*pid).is_some_and(|stat| stat.session == leader && !stat.is_zombie())).collect()
    }

    /// The process, its ancestors as long as they can be followed, and the leaders of its group and session. A leader
    /// that is gone is known by `attached`: the kernel gives its number to nobody while its group or session lives.
    pub fn lineage(&self, pid: u32, attached: &[Process]) -> Vec<Process> {
        let mut line = Vec::new();
        let mut leaders = Vec::new();
        let mut next = Some(pid);
        while let Some((pid, stat)) = next.and_then(|pid| Some((pid, self.source.stat(pid)?))) {
            line.push(self.named(pid, stat.start_time));
            if let Some((namespace, inner)) = self.source.inner(pid)
                && namespace != self.namespace
            {
                line.push(Process { pid: inner, start_time: stat.start_time, pid_ns: namespace });
            }
            if line.len() == 1 {
                leaders = vec![(stat.group, stat.start_time), (stat.session, stat.start_time)];
            }
            next = (stat.parent > 1 && line.len() < GENERATIONS).then_some(stat.parent);
        }
        for (leader, before) in leaders {
            let found = match self.source.stat(leader) {
                Some(stat) => Some(self.named(leader, stat.start_time)),
                None => attached
                    .iter()
                    .filter(|process| process.pid == leader && process.pid_ns == self.namespace)
                    .filter(|process| process.start_time <= before)
                    .max_by_key(|process| process.start_time)
                    .cloned(),
            };
            line.extend(found.filter(|process| !line.contains(process)));
        }
        line
    }

    /// Whether the process is gone, and with it every process that it left in its process group or session, and every
    /// child. A zombie has given its memory back and counts as gone. When in doubt the answer is no.
    pub fn is_gone(&self, process: &Process) -> bool {
        if process.pid_ns != self.namespace {
            return self.is_gone_elsewhere(process);
        }
        match self.source.stat(process.pid) {
            Some(stat) if stat.start_time == process.start_time && !stat.is_zombie() => return false,
            // The kernel gives a number to a new process only when no group or session bears it any more.
            Some(stat) if stat.start_time != process.start_time => return true,
            Some(_) => {}
            // /proc may hide other people's processes.
            None if self.source.exists(process.pid) => return false,
            None => {}
        }
        let Some(all) = self.source.all() else { return false };
        let left_behind = |stat: &Stat| {
            let descends = [stat.group, stat.session, stat.parent].contains(&process.pid);
            !stat.is_zombie() && descends
        };
        !all.into_iter().filter_map(|pid| self.source.stat(pid)).any(|stat| left_behind(&stat))
    }

    /// Whether this very process lives, seen from here. One of another pid namespace is looked for by its number there.
    pub fn shows(&self, process: &Process) -> bool {
        let same = |pid: u32| {
            self.source.stat(pid).is_some_and(|stat| stat.start_time == process.start_time && !stat.is_zombie())
        };
        if process.pid_ns == self.namespace {
            return same(process.pid);
        }
        let inner = (process.pid_ns.clone(), process.pid);
        let all = self.source.all().unwrap_or_default();
        all.into_iter().any(|pid| self.source.inner(pid).as_ref() == Some(&inner) && same(pid))
    }

    /// Which of the namespaces of these processes can be seen from here, so that a missing process is known to be gone.
    pub fn sees<'a>(&self, processes: impl IntoIterator<Item = &'a Process>) -> Vec<String> {
        let namespaces: BTreeSet<_> = processes.into_iter().map(|process| process.pid_ns.clone()).collect();
        let seen = |namespace: &String| *namespace == self.namespace || self.namespace == INITIAL_NAMESPACE;
        namespaces.into_iter().filter(seen).collect()
    }

    /// From the initial namespace every process is seen, under another number. One that cannot be told apart may be it.
    fn is_gone_elsewhere(&self, process: &Process) -> bool {
        if self.namespace != INITIAL_NAMESPACE {
            return false;
        }
        let Some(all) = self.source.all() else { return false };
        all.into_iter().all(|pid| {
            let Some(stat) = self.source.stat(pid) else { return true };
            if stat.is_zombie() || stat.is_kernel_thread(pid) {
                return true;
            }
            match self.source.inner(pid) {
                // Anything that started later and lives in that namespace may be a descendant.
                Some((namespace, _)) => namespace != process.pid_ns || stat.start_time < process.start_time,
                None => false,
            }
        })
    }

    fn named(&self, pid: u32, start_time: u64) -> Process {
        Process { pid, start_time, pid_ns: self.namespace.clone() }
    }
}

/// The kernel's own account.
struct Proc;

impl Source for Proc {
    fn stat(&self, pid: u32) -> Option<Stat> {
        Stat::of(pid)
    }

    fn exists(&self, pid: u32) -> bool {
        i32::try_from(pid).is_ok_and(|pid| kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH))
    }

    fn all(&self) -> Option<Vec<u32>> {
        let entries = fs::read_dir("/proc").ok()?;
        Some(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }

    fn inner(&self, pid: u32) -> Option<(String, u32)> {
        let namespace = fs::read_link(format!("/proc/{pid}/ns/pid")).ok()?.to_string_lossy().into_owned();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        // From the outermost namespace that we can see to the process's own (proc_pid_status(5)).
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        Some((namespace, numbers.split_ascii_whitespace().last()?.parse().ok()?))
    }
}

#[cfg(test)]
mod tests;
