//! Limits that a text process sets on itself, and what it uses.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};

/// Sets a limit, below the one that this process was started with.
pub(super) fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let (_, hard) = getrlimit(resource)?;
    Ok(setrlimit(resource, most.min(hard), hard)?)
}

/// The most memory that this process has had resident.
pub(super) fn resident() -> io::Result<i64> {
    let unit = if cfg!(target_os = "macos") { 1 } else { 1024 };
    Ok(getrusage(UsageWho::RUSAGE_SELF)?.max_rss() * unit)
}

/// The bytes that the limit on data counts for one process. The file is opened before the process confines itself. Its
/// forks read it, too: they begin with the same bytes.
pub(super) struct DataInUse(Option<File>);

impl DataInUse {
    /// Those of the calling process.
    pub(super) fn of_this_process() -> Self {
        Self(File::open("/proc/self/statm").ok())
    }

    /// The bytes; zero where the system does not report them.
    pub(super) fn bytes(&self) -> u64 {
        let mut text = [0; 256];
        let read = self.0.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let pages =
            std::str::from_utf8(&text[..read]).ok().and_then(|text| text.split(' ').nth(5)?.trim().parse().ok());
        pages.unwrap_or(0_u64).saturating_mul(4096)
    }
}
