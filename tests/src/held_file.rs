//! A file on a disk that seems to hang: opening or running it blocks. The means is a file lease (fcntl(2),
//! `F_SETLEASE`), which the kernel breaks by itself after 45 s.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;

/// The command that chooses the signal for a blocked open: its number is the same on every architecture.
const F_SETSIG: libc::c_int = 10;

/// Blocks a file until it is dropped.
pub struct HeldFile {
    _file: File,
}

impl HeldFile {
    /// Blocks every open of this file, which must not be open now. `None` where the file system has no leases.
    #[allow(unsafe_code)]
    pub fn hold(path: &Path) -> Option<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        // SAFETY: these commands of fcntl(2) take a number, and touch no memory of this program. The signal that
        // reports a blocked open is one that is ignored.
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
