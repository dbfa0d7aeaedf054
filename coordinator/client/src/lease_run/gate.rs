//! The gate of a leased program: it waits until the ledger has recorded its process, then becomes the program. It uses
//! no device and no ledger; its guards end it with its holder.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};

use clap::Args;

use super::error::LeaseError;

/// The byte that opens the gate.
pub(super) const OPEN: u8 = 0;
/// The exit code of a program that was ended with its lease, as a shell reports SIGKILL.
const KILLED: u8 = 128 + 9;

/// The holder that the gate waits for, and the program that it becomes.
#[derive(Clone, Debug, Args)]
pub struct GateArgs {
    /// The socket on which its holder listens.
    #[arg(long)]
    socket: PathBuf,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// Waits until the gate opens, then becomes the program. Returns only when the gate stays shut or the program cannot be
/// run.
pub(super) fn gate(args: &GateArgs) -> Result<ExitCode, LeaseError> {
    let mut holder = UnixStream::connect(&args.socket)
        .map_err(|error| LeaseError::System("reach the holder of the lease", error))?;
    let mut byte = [0];
    match holder.read_exact(&mut byte) {
        Ok(()) if byte[0] == OPEN => {}
        // The memory was not granted.
        _ => return Ok(ExitCode::from(KILLED)),
    }
    drop(holder);
    let Some((program, rest)) = args.program.split_first() else { return Ok(ExitCode::from(127)) };
    let error = Command::new(program).args(rest).exec();
    // The exit codes are those of a shell.
    let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    let message = LeaseError::Program(PathBuf::from(program), error);
    model_boss_host::terminal::say(&format!("model-boss: {}", model_boss_protocol::chain(&message)));
    Ok(ExitCode::from(code))
}

/// The exit code of a program as a shell reports it: 128 and the number of the signal that ended it.
pub(super) fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
