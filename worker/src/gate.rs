//! The gate and the lifeline on standard input.
//!
//! The first line is the start line; nothing is loaded and no port is taken before it came. The pipe then stays open
//! for as long as the coordinator lives, whatever happens to it, and its end ends this process at once. Later lines are
//! orders to the running worker.

use std::io::{self, BufRead, Read};
use std::thread;

use model_boss_protocol::{CpuShare, WorkerExit, WorkerOrder, WorkerSpec, WorkerSpecError};
use tokio::sync::watch;

/// A longer line is no start line.
const LONGEST_LINE: u64 = 16 << 20;

/// A longer line is no order.
const LONGEST_ORDER: u64 = 64 << 10;

/// The share of the cores by the coordinator's last order; `None` before the first.
pub(crate) type ShareOrders = watch::Receiver<Option<CpuShare>>;

/// No start line came.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GateError {
    /// The starter of the worker has gone, or wrote something else.
    #[error(transparent)]
    Spec(#[from] WorkerSpecError),
    /// Standard input cannot be read.
    #[error("standard input cannot be read")]
    Read(#[source] io::Error),
    /// No thread to read it.
    #[error("the lifeline cannot be watched")]
    Thread(#[source] io::Error),
}

/// Waits for the start line, on the calling thread: a process confines itself before it starts another.
pub(crate) fn wait_for_spec() -> Result<WorkerSpec, GateError> {
    let mut line = String::new();
    let read = io::stdin().lock().take(LONGEST_LINE).read_line(&mut line);
    read.map_err(GateError::Read)?;
    // Without its end the line is cut off, and there is no lifeline.
    let whole = if line.ends_with('\n') { line.as_str() } else { "" };
    Ok(WorkerSpec::from_line(whole)?)
}

/// Reads orders and watches the lifeline from now on, on a thread of its own.
pub(crate) fn watch_lifeline() -> Result<ShareOrders, GateError> {
    let (share, shares) = watch::channel(None);
    let watch = move || {
        read_orders(&mut io::stdin().lock(), |WorkerOrder::Cpu(given)| {
            let _ = share.send_replace(Some(given));
        });
        exit_at_once();
    };
    thread::Builder::new().name("lifeline".to_owned()).spawn(watch).map_err(GateError::Thread)?;
    Ok(shares)
}

/// Reads until every writer has closed the pipe. Lines that are no orders are ignored.
fn read_orders(input: &mut impl BufRead, mut obey: impl FnMut(WorkerOrder)) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match input.by_ref().take(LONGEST_ORDER).read_until(b'\n', &mut line) {
            Ok(0) => return,
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return,
            Ok(_) | Err(_) => WorkerOrder::from_line(&line).into_iter().for_each(&mut obey),
        }
    }
}

/// Ends the process without exit handlers: those of device libraries may hang, and the memory has to be freed now.
fn exit_at_once() -> ! {
    #[allow(unsafe_code)]
    // SAFETY: `_exit` has no preconditions; it ends the process without touching its memory.
    unsafe {
        nix::libc::_exit(WorkerExit::Clean.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fa_5_orders_are_read_until_the_pipe_ends_and_other_lines_are_ignored() {
        let long = "x".repeat(LONGEST_ORDER as usize);
        let lines = [
            "{\"cpu\":{\"threads\":2,\"nice\":0}}",
            "no order",
            "{\"cpu\":{\"threads\":0,\"nice\":0}}",
            "{\"later\":1}",
            &long,
            "\u{fffd}",
            "{\"cpu\":{\"threads\":1,\"nice\":7,\"group_nice\":9}}",
        ];
        let mut seen = Vec::new();
        read_orders(&mut lines.join("\n").as_bytes(), |WorkerOrder::Cpu(share)| {
            seen.push((share.threads.get(), share.nice, share.group_nice));
        });
        assert_eq!(seen, [(2, 0, 0), (1, 7, 9)]);
    }
}
