//! A process that forks others by the orders of a stream: the launcher forks text hosts, and a text host forks
//! renderers.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, fork};

use super::order::{HostOrder, OrderStream, Passed, RendererEnd};

/// Carries out orders until the sender is gone. Each new process runs `life` with its stream, its standard error in
/// place, and ends with it. This process must have one thread.
pub(super) fn serve(mut orders: OrderStream, mut life: impl FnMut(UnixStream) -> io::Result<()>) -> io::Result<()> {
    let mut children = BTreeSet::new();
    while let Some(order) = orders.next()? {
        match order {
            HostOrder::Open(passed) => {
                let pid = open(passed, &mut life);
                children.extend(pid.as_ref().ok());
                orders.opened(pid)?;
            }
            HostOrder::End(pid) if children.remove(&pid) => orders.ended(end(pid))?,
            HostOrder::End(_) => orders.ended(RendererEnd::Unknown)?,
        }
    }
    // Needed where the system does not end children with their parent.
    for pid in children {
        end(pid);
    }
    Ok(())
}

/// Ends a child, if it has not ended by itself, and returns how it ended.
fn end(pid: i32) -> RendererEnd {
    let pid = Pid::from_raw(pid);
    // The process is our own child and was not reaped, so the number is still its own.
    let _ = kill(pid, Signal::SIGKILL);
    loop {
        return match waitpid(pid, None) {
            Ok(WaitStatus::Exited(_, code)) => RendererEnd::Exited(code),
            Ok(WaitStatus::Signaled(_, signal, _)) => RendererEnd::Signal(signal as i32),
            Err(nix::errno::Errno::EINTR) => continue,
            Ok(_) | Err(_) => RendererEnd::Unknown,
        };
    }
}

/// Forks. Returns in the parent only.
fn open(Passed { stream, words }: Passed, life: &mut impl FnMut(UnixStream) -> io::Result<()>) -> io::Result<i32> {
    #[allow(unsafe_code)]
    // SAFETY: this process has one thread (that of loading was joined), so no lock is held by a thread that the child
    // lacks.
    let forked = unsafe { fork() }?;
    match forked {
        ForkResult::Parent { child } => Ok(child.as_raw()),
        ForkResult::Child => {
            let lived = begin(&words).and_then(|()| life(UnixStream::from(stream)));
            std::process::exit(i32::from(lived.is_err()))
        }
    }
}

/// The first acts of a new process. The runtime's last words go to the worker.
fn begin(words: &OwnedFd) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    dup2_stderr(words)?;
    Ok(())
}

/// Closes all streams but one and the standard ones, such as those inherited by a fork.
pub(super) fn close_all_but(stream: &UnixStream) -> io::Result<()> {
    let open: Vec<i32> =
        fs::read_dir("/dev/fd")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // The one of the listing itself is closed already.
    close_other_than(stream, open.into_iter());
    Ok(())
}

/// Closes these descriptors but for the stream's and the standard ones.
pub(super) fn close_other_than(stream: &UnixStream, descriptors: impl Iterator<Item = i32>) {
    let keep = stream.as_raw_fd();
    for fd in descriptors.filter(|fd| *fd > 2 && *fd != keep) {
        let _ = nix::unistd::close(fd);
    }
}
