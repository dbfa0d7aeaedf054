//! The end of a worker process: signals to its group, its status, and the report of both.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use model_boss_core::ExitReport;
use model_boss_host::guard::Lifeline;
use model_boss_protocol::WorkerExit;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::time::timeout;

/// The longest wait for the guards' end: they end everything within milliseconds.
const GUARD_LIMIT: Duration = Duration::from_secs(2);

/// Sends a signal to the worker's whole process group.
pub(super) fn signal(pid: u32, signal: Signal) {
    // Group 0 would be that of this process.
    if let Ok(pid) = i32::try_from(pid)
        && pid > 1
    {
        // An error means that the process has already ended.
        let _ = killpg(Pid::from_raw(pid), signal);
    }
}

/// Kills a worker through its guards. Guards that do not react (a signal has stopped them) are killed with it.
pub(super) async fn kill(child: &mut Child, pid: u32, guard: Lifeline) -> std::io::Result<ExitStatus> {
    drop(guard);
    if let Ok(status) = timeout(GUARD_LIMIT, child.wait()).await {
        return status;
    }
    signal(pid, Signal::SIGKILL);
    child.wait().await
}

/// The exit code as a shell gives it: 128 and the number of the signal that ended it.
pub(super) fn shell_code(status: &ExitStatus) -> Option<i32> {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal))
}

pub(super) fn not_started(why: &str) -> ExitReport {
    ExitReport { reason: None, description: format!("could not be started: {why}"), last_lines: Vec::new() }
}

pub(super) fn report(status: std::io::Result<ExitStatus>, why: Option<String>, last_lines: Vec<String>) -> ExitReport {
    let (reason, ended) = match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => (WorkerExit::from_code(code), format!("exit code {code}")),
            (None, Some(number)) => {
                let signal = Signal::try_from(number).ok();
                let name = signal.map_or("unknown", Signal::as_str);
                // A process that a signal killed leaves no message of its own.
                let why = match signal {
                    Some(Signal::SIGSYS) => ": it made a system call that its sandbox forbids (docs/sandbox.md)",
                    Some(Signal::SIGBUS) => ": a mapped file was cut, or its disk could not be read",
                    _ => "",
                };
                (None, format!("killed by signal {number} ({name}){why}"))
            }
            (None, None) => (None, "ended without a status".to_owned()),
        },
        Err(error) => (None, format!("could not be waited for: {error}")),
    };
    match why {
        Some(why) => ExitReport { reason: None, description: format!("{why}; {ended}"), last_lines },
        None => ExitReport { reason, description: ended, last_lines },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_a_broken_disk_sends_says_so() {
        let of_signal = |signal: Signal| report(Ok(ExitStatus::from_raw(signal as i32)), None, Vec::new()).description;
        assert_eq!(of_signal(Signal::SIGKILL), "killed by signal 9 (SIGKILL)");
        let said = of_signal(Signal::SIGBUS);
        assert!(said.contains("SIGBUS") && said.contains("disk could not be read"), "{said}");
    }
}
