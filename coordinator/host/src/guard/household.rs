//! The holder's own children, and the orphans that the holder inherits when guards are killed. Orphans are killed and
//! reaped here.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use model_boss_lease_store::{Below, ProcessTree, process};
use model_boss_protocol::Later;
use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getsid};
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};

/// The outer guards that this process started, by pid, with their start times. The list is global, because orphans
/// become children of the process, not of one of its parts.
static GUARDS: Mutex<BTreeMap<u32, u64>> = Mutex::new(BTreeMap::new());

/// The pause between checks for killed orphans.
const SWEEP: Duration = Duration::from_millis(5);
/// The longest wait for killed orphans: one that is alive after it is in a system call that does not return.
const LIMIT: Duration = Duration::from_secs(2);

/// Starts a guard and records it. Processes that are orphaned below the guard become children of this process.
pub(super) fn started(spawn: impl FnOnce() -> io::Result<Child>) -> io::Result<Child> {
    // The lock is held until the new child is recorded, so that no sweep takes it for an orphan.
    let mut guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
    set_child_subreaper(true)?;
    let child = spawn()?;
    if let Some(process) = child.id().and_then(|pid| process(pid).ok()) {
        guards.insert(process.pid, process.start_time);
        tokio::spawn(keep_running(process.pid));
    }
    Ok(child)
}

/// Resumes an outer guard whenever it is stopped, which any process of its user can do: a stopped guard ends nothing.
async fn keep_running(guard: u32) {
    let (Ok(guard), Ok(mut changes)) = (i32::try_from(guard), signal(SignalKind::child())) else { return };
    let guard = Pid::from_raw(guard);
    loop {
        // Only stops are collected here: the end of the guard is for the task that waits for it.
        match waitid(Id::Pid(guard), WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG) {
            Ok(WaitStatus::Stopped(..)) => _ = kill(guard, Signal::SIGCONT),
            Err(Errno::ECHILD) => return,
            Ok(_) | Err(_) => {}
        }
        if changes.recv().await.is_none() {
            return;
        }
    }
}

/// Kills and reaps every orphan that this process inherited from a killed guard. Returns whether none is left. The call
/// blocks for at most two seconds.
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

/// Kills all orphans once. Returns whether there was any.
fn sweep() -> bool {
    let mut guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
    let me = std::process::id();
    let below = ProcessTree::below(me);
    guards.retain(|pid, start_time| below.iter().any(|one| one.pid == *pid && one.start_time == *start_time));
    let session = getsid(None).ok().and_then(|session| u32::try_from(session.as_raw()).ok());
    let is_orphan = |one: &Below| {
        // A child in the session of this process was started by a library of this process: guarded processes have
        // sessions of their own.
        let ours = one.parent != me || Some(one.session) == session || guards.contains_key(&one.pid);
        // The first process of a container also inherits orphans that never had a guard.
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
        // A signal to a process that has ended fails, which does no harm. Killing an orphan makes its children orphans,
        // which the next sweep finds.
        let _ = kill(pid, Signal::SIGKILL);
        let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
    }
    !lost.is_empty()
}
