//! The gate and the lifeline on standard input.
//!
//! The first line is the start line; nothing is loaded and no port is taken before it came. The pipe then stays open
//! for as long as the coordinator lives, whatever happens to it, and its end ends this process at once.

use std::io::{self, BufRead, Read};
use std::sync::mpsc;
use std::thread;

use model_boss_protocol::{WorkerExit, WorkerSpec, WorkerSpecError};

/// A longer line is no start line.
const LONGEST_LINE: u64 = 16 << 20;

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

/// Waits for the start line, and from then on watches the lifeline on a thread of its own.
pub(crate) fn wait_for_spec() -> Result<WorkerSpec, GateError> {
    let (sender, line) = mpsc::sync_channel(1);
    let watch = move || {
        let mut input = io::stdin().lock();
        let mut line = String::new();
        let read = io::Read::by_ref(&mut input).take(LONGEST_LINE).read_line(&mut line).map(|_| line);
        // Without a line there is no work to guard, and the main thread ends the process.
        let gated = read.as_ref().is_ok_and(|line| line.ends_with('\n'));
        let delivered = sender.send(read).is_ok();
        if gated && delivered {
            wait_for_end(&mut input);
            exit_at_once();
        }
    };
    thread::Builder::new().name("lifeline".to_owned()).spawn(watch).map_err(GateError::Thread)?;
    match line.recv() {
        Ok(Ok(line)) => Ok(WorkerSpec::from_line(&line)?),
        Ok(Err(error)) => Err(GateError::Read(error)),
        Err(mpsc::RecvError) => Err(GateError::Spec(WorkerSpecError::Closed)),
    }
}

/// Reads until every writer has closed the pipe. The bytes are ignored.
fn wait_for_end(input: &mut impl Read) {
    let mut scrap = [0; 512];
    loop {
        match input.read(&mut scrap) {
            Ok(0) => return,
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return,
            Ok(_) | Err(_) => {}
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
