//! The steps between fork and exec: sessions, death signals, file descriptors.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, rlim_t, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{getppid, setsid};

/// Gives the child its own session (hence process group) and ties its life to the thread that spawns it.
pub fn die_with_us(command: &mut Command) {
    tie(command, Session::Own);
}

/// Ties the child's life to the guard's thread that spawns it, and unblocks the signals that guards block.
pub(super) fn die_with_parent(command: &mut Command) {
    tie(command, Session::OfParent);
}

/// Lets the child inherit this file descriptor. The child closes it when it starts a program in turn.
#[allow(unsafe_code)]
pub(super) fn pass_on(command: &mut Command, descriptor: RawFd) {
    let prepare = move || {
        // SAFETY: the caller holds the descriptor open until the child is spawned.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. `prepare` makes one plain system call,
    // takes no lock and allocates nothing. An error from an errno holds only the number.
    unsafe {
        command.pre_exec(prepare);
    }
}

/// Sets the child's soft and hard limit of file descriptors.
#[allow(unsafe_code)]
pub(super) fn limit_descriptors(command: &mut Command, (soft, hard): (rlim_t, rlim_t)) {
    let prepare = move || Ok(setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?);
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. `prepare` makes one plain system call,
    // takes no lock and allocates nothing. An error from an errno holds only the number.
    unsafe {
        command.pre_exec(prepare);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Session {
    Own,
    OfParent,
}

#[allow(unsafe_code)]
fn tie(command: &mut Command, session: Session) {
    let parent = std::process::id();
    let prepare = move || {
        match session {
            Session::Own => drop(setsid()?),
            Session::OfParent => SigSet::empty().thread_set_mask()?,
        }
        set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have died before the call above: then the signal would never be sent.
        if u32::try_from(getppid().as_raw()) != Ok(parent) {
            return Err(io::Error::from(Errno::ESRCH));
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. `prepare` makes a few plain system calls,
    // takes no lock and allocates nothing. An error from an errno holds only the number.
    unsafe {
        command.pre_exec(prepare);
    }
}
