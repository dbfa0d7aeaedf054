//! The holder's own children, and the orphans that come to it when guards are killed: those are ended and collected.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use model_boss_lease_store::{Below, ProcessTree, process};
use model_boss_protocol::Later;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, getsid};
use tokio::process::Child;

/// The outer guards that this process started, with their start times. One list for the whole process, as its orphans are.
static GUARDS: Mutex<BTreeMap<u32, u64>> = Mutex::new(BTreeMap::new());

/// Orphans that were killed are looked for this often,
const SWEEP: Duration = Duration::from_millis(5);
/// and this long: one that still lives then is in a system call that does not return.
const LIMIT: Duration = Duration::from_secs(2);

/// Starts a guard and knows it from then on. What is orphaned below it comes to this process.
pub(super) fn started(spawn: impl FnOnce() -> io::Result<Child>) -> io::Result<Child> {
    // Held while the child is there and not yet known.
    let mut guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
    set_child_subreaper(true)?;
    let child = spawn()?;
    if let Some(process) = child.id().and_then(|pid| process(pid).ok()) {
        guards.insert(process.pid, process.start_time);
    }
    Ok(child)
}

/// Ends and collects everything that came to this process because guards of its were killed. Says whether none is left.
/// Blocks for as long as that takes, two seconds at most.
pub fn end_orphans() -> bool {
    let deadline = Instant::now().later(LIMIT);
    loop {
        let left = sweep();
        if !left || Instant::now() > deadline {
            return !left;
        }
        std::thread::park_timeout(SWEEP);
    }
}

/// One look. Says whether there was any.
fn sweep() -> bool {
    let mut guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
    let me = std::process::id();
    let below = ProcessTree::below(me);
    guards.retain(|pid, start_time| below.iter().any(|one| one.pid == *pid && one.start_time == *start_time));
    let session = getsid(None).ok().and_then(|session| u32::try_from(session.as_raw()).ok());
    let is_orphan = |one: &Below| {
        // A child in our session was started by a library of this process: all that is guarded has left it.
        let ours = one.parent != me || Some(one.session) == session || guards.contains_key(&one.pid);
        // The first process of a container is given everybody's orphans.
        !ours && (me != 1 || one.is_zombie || ProcessTree::is_guarded(one.pid))
    };
    let mut lost: Vec<Below> = below.iter().filter(|one| is_orphan(one)).copied().collect();
    let mut at = 0;
    while let Some(one) = lost.get(at).copied() {
        lost.extend(below.iter().filter(|other| other.parent == one.pid));
        at += 1;
    }
    for one in &lost {
        let Ok(pid) = i32::try_from(one.pid).map(Pid::from_raw) else { continue };
        // One that is gone already needs no signal, and of those below an orphan the orphan is the parent.
        let _ = kill(pid, Signal::SIGKILL);
        let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
    }
    !lost.is_empty()
}
