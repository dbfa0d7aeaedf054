//! A file on a disk that hangs, as programs see it: whoever opens or runs it waits. Made by a file lease (fcntl(2),
//! `F_SETLEASE`), which the kernel breaks after 45 s by itself.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;

/// Which signal tells of somebody who waits: the number of the command is the same on every architecture.
const F_SETSIG: libc::c_int = 10;

/// Holds a file until it is dropped.
pub struct HeldFile {
    _file: File,
}

impl HeldFile {
    /// Lets everybody wait who opens this file, which nobody has open now. `None` where the file system has no leases.
    #[allow(unsafe_code)]
    pub fn hold(path: &Path) -> Option<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        // SAFETY: these commands of fcntl(2) take a number, and touch no memory of ours. The signal that tells of somebody
        // who waits is one that is ignored.
        let held = unsafe {
            libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0
        };
        if !held {
            eprintln!("passed over: no lease on {} ({})", path.display(), Errno::last());
            return None;
        }
        Some(Self { _file: file })
    }
}
