//! Process trees: whose child a process is, whether it is gone with all that it left behind, and which pid namespaces
//! can be seen from here. Looks at `/proc`, and knows no leases.
//!
//! A process belongs to the tree of an ancestor while the chain of parents leads there. A chain breaks when its middle
//! dies; the group, the session and the marks of guards that a process inherited still name the tree then.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use model_boss_lease::Process;
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::host::pid_namespace;
use crate::stat::{Stat, users_of};

/// The initial pid namespace, in which every process of the host is seen (PROC_PID_INIT_INO of the kernel).
const INITIAL_NAMESPACE: &str = "pid:[4026531836]";

/// A chain of parents longer than this is not followed.
const GENERATIONS: usize = 64;

/// So many numbers behind the newest process are looked at for newer ones.
const MISSING: u32 = 16;

/// The environment variable that names every guard above a process, outermost first, with commas between them. It is
/// inherited over sessions and double forks.
pub const GUARDS_VARIABLE: &str = "MODEL_BOSS_GUARDS";

/// How a guard is named in [`GUARDS_VARIABLE`].
pub fn guard_mark(guard: &Process) -> String {
    let namespace: String = guard.pid_ns.chars().filter(char::is_ascii_digit).collect();
    format!("{}-{}-{namespace}", guard.pid, guard.start_time)
}

/// The processes of a host, as they are at each call.
pub struct ProcessTree {
    source: Box<dyn Source>,
    namespace: String,
    /// Whose processes alone may bear the mark of a guard, where that is known. Anybody can write a mark into the environment
    /// of their own processes.
    users: BTreeMap<String, u32>,
}

/// Every process that lived at one look.
pub struct ProcessLook(BTreeMap<u32, Stat>);

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
    /// The marks of the guards above a process, with commas between them; `None` without any, and for processes of other
    /// users.
    fn guards(&self, pid: u32) -> Option<String>;
    /// The real and the effective user of a process.
    fn users(&self, pid: u32) -> Option<[u32; 2]>;
}

impl ProcessTree {
    /// The processes that this process can see, whose pid namespace is `namespace`.
    pub fn of_this_host(namespace: String) -> Self {
        Self { source: Box::new(Proc), namespace, users: BTreeMap::new() }
    }

    /// The same, where the mark of each of these processes counts for processes of its user only.
    #[must_use]
    pub fn with_users<'a>(mut self, roots: impl IntoIterator<Item = (&'a Process, u32)>) -> Self {
        self.users = roots.into_iter().map(|(root, user)| (guard_mark(root), user)).collect();
        self
    }

    /// Every process that lives now; `None` when they cannot be listed.
    pub fn snapshot(&self) -> Option<ProcessLook> {
        living(self.source.as_ref()).map(ProcessLook)
    }

    /// Every process of a look whose chain of parents led to `root`, which is not among them.
    pub fn descendants(&self, look: &ProcessLook, root: &Process) -> Vec<Process> {
        if look.0.get(&root.pid).is_none_or(|stat| stat.start_time != root.start_time) {
            return Vec::new();
        }
        let reached = reach([root.pid].into(), look.0.iter().map(|(pid, stat)| (stat.parent, *pid)));
        let below = look.0.iter().filter(|(pid, _)| **pid != root.pid && reached.contains(pid));
        below.map(|(pid, stat)| self.named(*pid, stat.start_time)).collect()
    }

    /// Whether a process bears the mark of this guard, and may.
    pub fn bears_mark_of(&self, process: &Process, guard: &Process) -> bool {
        self.shows(process) && self.bears(process.pid, &guard_mark(guard))
    }

    /// Every living process that bears the mark of this guard, with the descendants, groups and sessions of each.
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

    /// Every process whose chain of parents leads to `ancestor`, which is not among them. Complete while the ancestor is
    /// a subreaper (prctl(2), `PR_SET_CHILD_SUBREAPER`): orphans below it become its children.
    pub fn below(ancestor: u32) -> Vec<Below> {
        let all = Proc.all().unwrap_or_default();
        // Processes that were born while the others were looked at have the next numbers.
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

    /// Whether some guard stands above a process, by the mark that it bears.
    pub fn is_guarded(pid: u32) -> bool {
        Proc.guards(pid).is_some()
    }

    /// Every living process of the tree of `root`, which is among them while it lives: its descendants, the groups and
    /// sessions that they lead, and the processes that bear the root's mark, with all of theirs. Empty for a root of
    /// another pid namespace.
    pub fn members(&self, root: &Process) -> Vec<Process> {
        if root.pid_ns != self.namespace {
            return Vec::new();
        }
        let members = living(self.source.as_ref()).map(|living| self.members_among(&living, root)).unwrap_or_default();
        members.into_iter().map(|(pid, start_time)| self.named(pid, start_time)).collect()
    }

    fn members_among(&self, living: &BTreeMap<u32, Stat>, root: &Process) -> Vec<(u32, u64)> {
        // The kernel gives a number to a new process only when no group or session bears it any more.
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
        if !attached.iter().any(|process| line.contains(process)) {
            // Its chain is broken: the nearest guard above it is the last one that it names.
            let guards = self.source.guards(pid).unwrap_or_default();
            let named = guards.rsplit(',').filter(|mark| self.may_bear(pid, mark)).filter_map(|mark| {
                attached.iter().find(|process| process.pid_ns == self.namespace && guard_mark(process) == mark)
            });
            line.extend(named.cloned());
        }
        line
    }

    /// Whether the process is gone, and with it every process of its tree ([`ProcessTree::members`]). A zombie has given
    /// its memory back and counts as gone. When in doubt the answer is no.
    pub fn is_gone(&self, process: &Process) -> bool {
        if process.pid_ns != self.namespace {
            return self.is_gone_elsewhere(process);
        }
        // Most that are asked about live: that is seen without looking at every other process.
        if self.shows(process) {
            return false;
        }
        // /proc may hide other people's processes.
        if self.source.stat(process.pid).is_none() && self.source.exists(process.pid) {
            return false;
        }
        living(self.source.as_ref()).is_some_and(|living| self.members_among(&living, process).is_empty())
    }

    /// Whether this very process is known to have ended, whatever it left behind.
    pub fn has_ended(&self, process: &Process) -> bool {
        // /proc may hide other people's processes.
        let hidden = || self.source.stat(process.pid).is_none() && self.source.exists(process.pid);
        process.pid_ns == self.namespace && !self.shows(process) && !hidden()
    }

    /// Whether this very process lives, seen from here.
    pub fn shows(&self, process: &Process) -> bool {
        self.number_of(process).is_some()
    }

    /// The number that this very process has here, if it lives.
    pub(crate) fn number_of(&self, process: &Process) -> Option<u32> {
        let same = |pid: &u32| {
            self.source.stat(*pid).is_some_and(|stat| stat.start_time == process.start_time && !stat.is_zombie())
        };
        let here =
            if process.pid_ns == self.namespace { Some(process.pid) } else { self.here(&process.pid_ns, process.pid) };
        here.filter(same)
    }

    /// The number here of the process that has this number in another pid namespace.
    pub(crate) fn here(&self, namespace: &str, pid: u32) -> Option<u32> {
        let bears = |here: &u32| self.source.inner(*here).is_some_and(|(ns, inner)| ns == namespace && inner == pid);
        self.source.all().unwrap_or_default().into_iter().find(bears)
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

/// A process below another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Below {
    /// Its number.
    pub pid: u32,
    /// When it began.
    pub start_time: u64,
    /// Its parent's number.
    pub parent: u32,
    /// Its session's.
    pub session: u32,
    /// It ended, and its parent has not collected it yet.
    pub is_zombie: bool,
}

impl Below {
    fn new(pid: u32, stat: &Stat) -> Self {
        let Stat { parent, session, start_time, .. } = *stat;
        Self { pid, start_time, parent, session, is_zombie: stat.is_zombie() }
    }
}

/// Every living process; `None` when they cannot be listed.
fn living(source: &dyn Source) -> Option<BTreeMap<u32, Stat>> {
    let all = source.all()?.into_iter();
    Some(all.filter_map(|pid| Some((pid, source.stat(pid)?))).filter(|(_, stat)| !stat.is_zombie()).collect())
}

/// `seeds` and everything that edges (from, to) lead to from there.
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

    fn guards(&self, pid: u32) -> Option<String> {
        // As it was when the program began (proc_pid_environ(5)); programs may write over it.
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let value =
            |entry: &[u8]| entry.strip_prefix(GUARDS_VARIABLE.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
        String::from_utf8(environment.split(|byte| *byte == 0).find_map(value)?).ok()
    }

    fn users(&self, pid: u32) -> Option<[u32; 2]> {
        users_of(pid)
    }
}

/// Whether the process is gone with everything that it left behind. See [`ProcessTree::is_gone`].
pub fn is_gone(process: &Process) -> bool {
    pid_namespace().is_ok_and(|namespace| ProcessTree::of_this_host(namespace).is_gone(process))
}

#[cfg(test)]
mod tests;
