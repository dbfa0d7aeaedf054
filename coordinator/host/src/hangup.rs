//! SIGHUP: the terminal was closed, or another process requests the end of this one. Under `nohup` the signal is
//! ignored from the start, and stays ignored.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for SIGHUP; `None` where this process was started with the signal ignored.
pub fn listen() -> io::Result<Option<Hangup>> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if is_ignored(&status) { Ok(None) } else { Ok(Some(Hangup(signal(SignalKind::hangup())?))) }
}

/// The stream of SIGHUP signals.
pub struct Hangup(Signal);

/// Waits for the next SIGHUP, forever where the signal is ignored.
pub async fn next(hangup: &mut Option<Hangup>) {
    match hangup {
        Some(Hangup(signal)) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether a process's status shows SIGHUP as ignored. The mask of ignored signals is in hexadecimal
/// (proc_pid_status(5)): its lowest bit is signal 1.
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
