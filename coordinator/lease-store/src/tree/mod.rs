//! Process trees: descendants of a process, whether it and all of them have ended, and which pid namespaces are
//! visible. The module reads `/proc`.
//!
//! A process belongs to the tree of an ancestor while the chain of parents leads to it. The chain breaks when a process
//! in its middle dies. Then the group, the session and the inherited marks of guards still identify the tree.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use std::{fs, thread};

use model_boss_lease::Process;
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::host::pid_namespace;
use crate::stat::{Stat, users_of};

/// The initial pid namespace, in which all processes of the host are visible (PROC_PID_INIT_INO of the kernel).
const INITIAL_NAMESPACE: &str = "pid:[4026531836]";

/// The longest chain of parents that is followed.
const GENERATIONS: usize = 64;

/// The number of process ids beyond the newest process that are checked for newer ones.
const MISSING: u32 = 16;

/// The longest wait for the environment of a process that is being started.
const STARTING: Duration = Duration::from_millis(100);

/// The environment variable with the marks of all guards above a process, outermost first, separated by commas. It is
/// inherited over sessions and double forks.
pub const GUARDS_VARIABLE: &str = "MODEL_BOSS_GUARDS";

/// The mark of a guard in [`GUARDS_VARIABLE`].
pub fn guard_mark(guard: &Process) -> String {
    let namespace: String = guard.pid_ns.chars().filter(char::is_ascii_digit).collect();
    format!("{}-{}-{namespace}", guard.pid, guard.start_time)
}

/// The processes of a host, read anew at each call.
pub struct ProcessTree {
    source: Box<dyn ProcessSource>,
    namespace: String,
    /// The users whose processes may have the mark of a guard, by mark, if known. Otherwise any user could write a mark
    /// into the environment of their own processes.
    users: BTreeMap<String, u32>,
}

/// All processes that lived at one moment.
pub struct ProcessLook(BTreeMap<u32, Stat>);

/// A source of processes.
trait ProcessSource {
    /// The kernel's data of a process.
    fn stat(&self, pid: u32) -> Option<Stat>;
    /// Whether a process of this number exists, visible or hidden.
    fn exists(&self, pid: u32) -> bool;
    /// All visible processes; `None` when they cannot be listed.
    fn all(&self) -> Option<Vec<u32>>;
    /// The pid namespace of a process and its number there; `None` when they cannot be read.
    fn inner(&self, pid: u32) -> Option<(String, u32)>;
    /// The marks of the guards above a process, separated by commas; `None` without any, and for processes of other
    /// users.
    fn guards(&self, pid: u32) -> Option<String>;
    /// The real and the effective user of a process.
    fn users(&self, pid: u32) -> Option<[u32; 2]>;
}

impl ProcessTree {
    /// The processes visible to this process, whose pid namespace is `namespace`.
    pub fn of_this_host(namespace: String) -> Self {
        Self { source: Box::new(Proc), namespace, users: BTreeMap::new() }
    }

    /// Limits the mark of each of these processes to processes of its user.
    #[must_use]
    pub fn with_users<'a>(mut self, roots: impl IntoIterator<Item = (&'a Process, u32)>) -> Self {
        self.users = roots.into_iter().map(|(root, user)| (guard_mark(root), user)).collect();
        self
    }

    /// All processes that are alive now; `None` if they cannot be listed.
    pub fn snapshot(&self) -> Option<ProcessLook> {
        living(self.source.as_ref()).map(ProcessLook)
    }

    /// All processes of a snapshot whose chain of parents led to `root`, without `root` itself.
    pub fn descendants(&self, look: &ProcessLook, root: &Process) -> Vec<Process> {
        if look.0.get(&root.pid).is_none_or(|stat| stat.start_time != root.start_time) {
            return Vec::new();
        }
        let reached = reach([root.pid].into(), look.0.iter().map(|(pid, stat)| (stat.parent, *pid)));
        let below = look.0.iter().filter(|(pid, _)| **pid != root.pid && reached.contains(pid));
        below.map(|(pid, stat)| self.named(*pid, stat.start_time)).collect()
    }

    /// Whether a process has the mark of this guard and is of a permitted user.
    pub fn bears_mark_of(&self, process: &Process, guard: &Process) -> bool {
        self.shows(process) && self.bears(process.pid, &guard_mark(guard))
    }

    /// All living processes with the mark of this guard, with the descendants, groups and sessions of each.
    pub fn marked(&self, guard: &Process) -> Vec<Process> {
        let Some(living) = living(self.source.as_ref()).filter(|_| guard.pid_ns == self.namespace) else {
            return Vec::new();
        };
        let mark = guard_mark(guard);
        let later = || living.iter().filter(|(_, stat)| stat.start_time >= guard.start_time);
        let bearers: BTreeSet<u32> = later().map(|(pid, _)| *pid).filter(|pid| self.bears(*pid, &mark)).collect();
        let edges =
            later().flat_map(|(pid, stat)| [stat.parent, stat.group, stat.session].map(|leader| (leader, *pid)));
        let reached = reach(bearers, edges);
        later().filter(|(pid, _)| reached.contains(pid)).map(|(pid, stat)| self.named(*pid, stat.start_time)).collect()
    }

    fn bears(&self, pid: u32, mark: &str) -> bool {
        self.source.guards(pid).is_some_and(|guards| bears(&guards, mark)) && self.may_bear(pid, mark)
    }

    fn may_bear(&self, pid: u32, mark: &str) -> bool {
        self.users.get(mark).is_none_or(|user| self.source.users(pid) == Some([*user; 2]))
    }

    /// All processes whose chain of parents leads to `ancestor`, without `ancestor` itself. The list is complete while
    /// the ancestor is a subreaper (prctl(2), `PR_SET_CHILD_SUBREAPER`): orphans below it become its children.
    pub fn below(ancestor: u32) -> Vec<Below> {
        let all = Proc.all().unwrap_or_default();
        // Processes that started during the listing have the next numbers.
        let newest = all.iter().copied().max().unwrap_or_default();
        let mut found: BTreeMap<u32, Stat> = all.iter().filter_map(|pid| Some((*pid, Stat::of(*pid)?))).collect();
        let (mut next, mut missing) = (newest + 1, 0);
        while missing < MISSING {
            match Stat::of(next) {
                Some(stat) => drop(found.insert(next, stat)),
                None => missing += 1,
            }
            next += 1;
        }
        let reached = reach([ancestor].into(), found.iter().map(|(pid, stat)| (stat.parent, *pid)));
        let below = found.into_iter().filter(|(pid, _)| reached.contains(pid) && *pid != ancestor);
        below.map(|(pid, stat)| Below::new(pid, &stat)).collect()
    }

    /// Whether a process is below a guard, by its mark.
    pub fn is_guarded(pid: u32) -> bool {
        Proc.guards(pid).is_some()
    }

    /// All living processes of the tree of `root`, with `root` itself if it is alive. These are its descendants, the
    /// groups and sessions that they lead, and the processes with the root's mark, with all of theirs. The list is
    /// empty for a root of another pid namespace.
    pub fn members(&self, root: &Process) -> Vec<Process> {
        if root.pid_ns != self.namespace {
            return Vec::new();
        }
        let members = living(self.source.as_ref()).map(|living| self.members_among(&living, root)).unwrap_or_default();
        members.into_iter().map(|(pid, start_time)| self.named(pid, start_time)).collect()
    }

    fn members_among(&self, living: &BTreeMap<u32, Stat>, root: &Process) -> Vec<(u32, u64)> {
        // The kernel reuses a number only when no group or session has it any more.
        let reused = self.source.stat(root.pid).is_some_and(|stat| stat.start_time != root.start_time);
        let seeds: BTreeSet<u32> = if reused { BTreeSet::new() } else { [root.pid].into() };
        let may_belong = |stat: &Stat| stat.start_time >= root.start_time;
        let edges = || {
            let later = living.iter().filter(|(_, stat)| may_belong(stat));
            later.flat_map(|(pid, stat)| [stat.parent, stat.group, stat.session].map(|leader| (leader, *pid)))
        };
        let mut reached = reach(seeds, edges());
        let mark = guard_mark(root);
        let marked = |pid: &u32| self.bears(*pid, &mark);
        let unexplained = living.iter().filter(|(pid, stat)| may_belong(stat) && !reached.contains(pid));
        let orphans: Vec<u32> = unexplained.map(|(pid, _)| *pid).filter(marked).collect();
        if !orphans.is_empty() {
            reached = reach(reached.into_iter().chain(orphans).collect(), edges());
        }
        let members = living.iter().filter(|(pid, stat)| reached.contains(pid) && may_belong(stat));
        members.map(|(pid, stat)| (*pid, stat.start_time)).collect()
    }

    /// The process, its ancestors as far as they can be followed, and the leaders of its group and session. A leader
    /// that has ended is found in `attached`: the kernel does not reuse its number while its group or session exists.
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
        if !attached.iter().any(|process| line.contains(process)) {
            // The chain of parents is broken: the nearest guard above the process is the last in its marks.
            let guards = self.source.guards(pid).unwrap_or_default();
            let named = guards.rsplit(',').filter(|mark| self.may_bear(pid, mark)).filter_map(|mark| {
                attached.iter().find(|process| process.pid_ns == self.namespace && guard_mark(process) == mark)
            });
            line.extend(named.cloned());
        }
        line
    }

    /// Whether the process has ended, and with it every process of its tree ([`ProcessTree::members`]). A zombie has
    /// given its memory back and counts as ended. In doubt the answer is no.
    pub fn is_gone(&self, process: &Process) -> bool {
        if process.pid_ns != self.namespace {
            return self.is_gone_elsewhere(process);
        }
        // Most of these processes are alive, which is found without listing all others.
        if self.shows(process) {
            return false;
        }
        // /proc may hide other users' processes.
        if self.source.stat(process.pid).is_none() && self.source.exists(process.pid) {
            return false;
        }
        living(self.source.as_ref()).is_some_and(|living| self.members_among(&living, process).is_empty())
    }

    /// Whether this very process is known to have ended, even if it left other processes.
    pub fn has_ended(&self, process: &Process) -> bool {
        // /proc may hide other users' processes.
        let hidden = || self.source.stat(process.pid).is_none() && self.source.exists(process.pid);
        process.pid_ns == self.namespace && !self.shows(process) && !hidden()
    }

    /// Whether this very process is named as guards are, and was stopped by a signal.
    pub fn is_stopped_guard(&self, process: &Process) -> bool {
        let stopped = |pid| self.source.stat(pid).is_some_and(|stat| stat.named_guard && stat.is_stopped());
        process.pid_ns == self.namespace && self.shows(process) && stopped(process.pid)
    }

    /// Whether this very process is alive, if it is visible from here.
    pub fn shows(&self, process: &Process) -> bool {
        self.number_of(process).is_some()
    }

    /// The number of this very process in this process's pid namespace, if it is alive.
    pub(crate) fn number_of(&self, process: &Process) -> Option<u32> {
        let same = |pid: &u32| {
            self.source.stat(*pid).is_some_and(|stat| stat.start_time == process.start_time && !stat.is_zombie())
        };
        let here =
            if process.pid_ns == self.namespace { Some(process.pid) } else { self.here(&process.pid_ns, process.pid) };
        here.filter(same)
    }

    /// The number in this process's namespace of the process that has this number in another one.
    pub(crate) fn here(&self, namespace: &str, pid: u32) -> Option<u32> {
        let bears = |here: &u32| self.source.inner(*here).is_some_and(|(ns, inner)| ns == namespace && inner == pid);
        self.source.all().unwrap_or_default().into_iter().find(bears)
    }

    /// The namespaces of these processes that are visible from here, so that a missing process is known to have
    /// ended.
    pub fn sees<'a>(&self, processes: impl IntoIterator<Item = &'a Process>) -> Vec<String> {
        let namespaces: BTreeSet<_> = processes.into_iter().map(|process| process.pid_ns.clone()).collect();
        let seen = |namespace: &String| *namespace == self.namespace || self.namespace == INITIAL_NAMESPACE;
        namespaces.into_iter().filter(seen).collect()
    }

    /// Whether a process of another namespace has ended. From the initial namespace every process is visible, under
    /// another number. One that cannot be identified may be it.
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
                // A process that started later in that namespace may be a descendant.
                Some((namespace, _)) => namespace != process.pid_ns || stat.start_time < process.start_time,
                None => false,
            }
        })
    }

    fn named(&self, pid: u32, start_time: u64) -> Process {
        Process { pid, start_time, pid_ns: self.namespace.clone() }
    }
}

/// A process below another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Below {
    /// The process id.
    pub pid: u32,
    /// The start time in clock ticks since boot.
    pub start_time: u64,
    /// The parent's process id.
    pub parent: u32,
    /// The session's id.
    pub session: u32,
    /// Whether the process ended and its parent has not reaped it yet.
    pub is_zombie: bool,
}

impl Below {
    fn new(pid: u32, stat: &Stat) -> Self {
        let Stat { parent, session, start_time, .. } = *stat;
        Self { pid, start_time, parent, session, is_zombie: stat.is_zombie() }
    }
}

/// All living processes; `None` when they cannot be listed.
fn living(source: &dyn ProcessSource) -> Option<BTreeMap<u32, Stat>> {
    let all = source.all()?.into_iter();
    Some(all.filter_map(|pid| Some((pid, source.stat(pid)?))).filter(|(_, stat)| !stat.is_zombie()).collect())
}

/// The set of `seeds` and of all numbers that edges (from, to) reach from them.
fn reach(seeds: BTreeSet<u32>, edges: impl Iterator<Item = (u32, u32)>) -> BTreeSet<u32> {
    let mut next: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (from, to) in edges {
        next.entry(from).or_default().push(to);
    }
    let mut open: Vec<u32> = seeds.iter().copied().collect();
    let mut reached = seeds;
    while let Some(at) = open.pop() {
        for to in next.remove(&at).unwrap_or_default() {
            if reached.insert(to) {
                open.push(to);
            }
        }
    }
    reached
}

/// Whether `mark` is one of the marks in `guards`.
fn bears(guards: &str, mark: &str) -> bool {
    guards.split(',').any(|guard| guard == mark)
}

/// The kernel's data in `/proc`.
struct Proc;

impl ProcessSource for Proc {
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
        // The line has the process's numbers, from the outermost visible namespace to its own (proc_pid_status(5)).
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        Some((namespace, numbers.split_ascii_whitespace().last()?.parse().ok()?))
    }

    fn guards(&self, pid: u32) -> Option<String> {
        let environment = environment(pid)?;
        let value =
            |entry: &[u8]| entry.strip_prefix(GUARDS_VARIABLE.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
        String::from_utf8(environment.split(|byte| *byte == 0).find_map(value)?).ok()
    }

    fn users(&self, pid: u32) -> Option<[u32; 2]> {
        users_of(pid)
    }
}

/// The environment of a process at its program's start (proc_pid_environ(5)); programs may overwrite it. A process that
/// is between two programs has none for a moment, and is waited for.
fn environment(pid: u32) -> Option<Vec<u8>> {
    let read = || fs::read(format!("/proc/{pid}/environ")).ok();
    for _ in 0..STARTING.as_millis() {
        let environment = read()?;
        let stat = Stat::of(pid)?;
        if !environment.is_empty() || stat.is_zombie() || stat.is_kernel_thread(pid) {
            return Some(environment);
        }
        if stat.has_environment {
            break;
        }
        thread::park_timeout(Duration::from_millis(1));
    }
    read()
}

/// Whether the process has ended with all processes that it left ([`ProcessTree::is_gone`]).
pub fn is_gone(process: &Process) -> bool {
    pid_namespace().is_ok_and(|namespace| ProcessTree::of_this_host(namespace).is_gone(process))
}

#[cfg(test)]
mod tests;
