//! SIGHUP: the terminal is gone, or somebody asks for an end. `nohup` has us ignore it, and then it stays ignored.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for it; `None` where whoever started this process had it ignored.
pub fn listen() -> io::Result<Option<Hangup>> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if is_ignored(&status) { Ok(None) } else { Ok(Some(Hangup(signal(SignalKind::hangup())?))) }
}

/// The signal, while it is not ignored.
pub struct Hangup(Signal);

/// Waits for the next one, for ever where it is ignored.
pub async fn next(hangup: &mut Option<Hangup>) {
    match hangup {
        Some(Hangup(signal)) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// The mask of ignored signals, in hexadecimal (proc_pid_status(5)): the first bit is signal 1.
fn is_ignored(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        assert!(is_ignored("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0\n"));
        assert!(!is_ignored("SigIgn:\t0000000000001000\n"));
        assert!(!is_ignored(""));
    }
}
