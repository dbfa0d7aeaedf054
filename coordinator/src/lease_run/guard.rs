//! The guard of a leased program: waits at the gate, starts the program, and ends everything of it when the program
//! ends, when it is told to, or when whoever holds the lease is gone. Touches no device and knows no ledger.
//!
//! It leads a session of its own, in which the program and what it starts are found again. Until the gate opens it dies with
//! the process that started it; from then on it outlives it, by as long as it takes to end that session. The program dies
//! with the guard.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use clap::Args;
use model_boss_lease_store::ProcessTree;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};

use super::LeaseError;

/// What opens the gate. Every other byte is the number of a signal for the program.
pub(super) const OPEN: u8 = 0;
/// What is left of the program's session is looked for this often, so many times, after SIGKILL.
const SWEEP: Duration = Duration::from_millis(10);
const SWEEPS: u32 = 200;
/// The exit code for a program that was ended with its lease, as a shell would give it.
const KILLED: i32 = 128 + 9;

/// What the guard is told.
#[derive(Clone, Debug, Args)]
pub(crate) struct GuardArgs {
    /// Where its holder listens.
    #[arg(long)]
    socket: PathBuf,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// What becomes the program.
#[derive(Clone, Debug, Args)]
pub(crate) struct ExecArgs {
    /// The guard's process.
    #[arg(long)]
    guard: u32,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// Waits until the gate opens, then runs the program. Gives the program's exit code.
pub(super) fn guard(args: &GuardArgs) -> Result<ExitCode, LeaseError> {
    let system = |what| move |error| LeaseError::System(what, error);
    let mut holder = UnixStream::connect(&args.socket).map_err(system("reach the holder of the lease"))?;
    match next(&mut holder) {
        Some(OPEN) => {}
        // It did not get the memory, or told the program to end before it began.
        _ => return Ok(ExitCode::from(u8::try_from(KILLED).unwrap_or(1))),
    }
    // From here on the end of the holder is seen on its socket: ended by a signal, the guard could not end what the program
    // started.
    set_pdeathsig(None).map_err(|error| LeaseError::System("outlive the holder", io::Error::from(error)))?;
    let me = std::env::current_exe().map_err(system("find this program"))?;
    let mut program = Command::new(me)
        .args(["lease", "exec", "--guard", &std::process::id().to_string(), "--"])
        .args(&args.program)
        .process_group(0)
        .spawn()
        .map_err(system("start the program"))?;
    let group = program.id();
    std::thread::Builder::new()
        .name("holder".to_owned())
        .spawn(move || {
            while let Some(signal) = next(&mut holder) {
                if let Ok(signal) = Signal::try_from(i32::from(signal)) {
                    signal_group(group, signal);
                }
            }
            end_session();
            std::process::exit(KILLED);
        })
        .map_err(system("start a thread"))?;
    let status = program.wait().map_err(system("wait for the program"))?;
    // What the program left behind would use memory that is no longer leased.
    end_session();
    Ok(code(status))
}

/// Becomes the program, tied to the guard's life.
pub(super) fn exec(args: &ExecArgs) -> Result<ExitCode, LeaseError> {
    let errno = |error: nix::Error| LeaseError::System("tie the program to its guard", io::Error::from(error));
    set_pdeathsig(Signal::SIGKILL).map_err(errno)?;
    // The guard may have died before the line above: then nobody would ever send the signal.
    if u32::try_from(getppid().as_raw()) != Ok(args.guard) {
        return Err(errno(nix::Error::ESRCH));
    }
    let Some((program, rest)) = args.program.split_first() else { return Ok(ExitCode::from(127)) };
    let error = Command::new(program).args(rest).exec();
    // As a shell would.
    let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    let message = LeaseError::Program(PathBuf::from(program), error);
    let text = format!("model-boss: {}\n", crate::error_chain::chain(&message));
    // Without standard error there is nobody to tell.
    let _ = io::stderr().write_all(text.as_bytes());
    Ok(ExitCode::from(code))
}

/// The exit code of a program as a shell gives it: 128 and the number of the signal that ended it.
pub(super) fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// The next byte; `None` when the holder is gone.
fn next(holder: &mut UnixStream) -> Option<u8> {
    let mut byte = [0];
    loop {
        match holder.read(&mut byte) {
            Ok(1) => return Some(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => return None,
        }
    }
}

fn signal_group(group: u32, signal: Signal) {
    if let Ok(group) = i32::try_from(group) {
        // A group that is gone needs no signal.
        let _ = kill(Pid::from_raw(-group), signal);
    }
}

/// Ends every process of this session but this one.
fn end_session() {
    let me = std::process::id();
    for _ in 0..SWEEPS {
        let left: Vec<u32> = ProcessTree::session(me).into_iter().filter(|pid| *pid != me).collect();
        if left.is_empty() {
            return;
        }
        for pid in left.iter().filter_map(|pid| i32::try_from(*pid).ok()) {
            // One that is gone already needs no signal.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::park_timeout(SWEEP);
    }
}
