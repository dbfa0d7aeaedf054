//! Guards: two processes between a holder (the coordinator, `lease run`) and a program that it starts. No process of
//! the program outlives its holder, even after new sessions and double forks, and independent of which process is
//! killed first.
//!
//! Holder, outer guard and inner guard are subreapers: a process orphaned below one of them becomes its child, or that
//! of the next one above. Each sees the end of the others and then ends everything below itself. A guard ends only when
//! the kernel reports that nothing is left below it. See docs/adr/0030.

mod household;
mod leftovers;
mod process;
mod tie;

use std::ffi::OsStr;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsRawFd;

use tokio::process::{Child, Command};

use crate::descriptors;
use crate::environment::ChildEnvironment;
use crate::guard::process::OWN_PROGRAM;
use model_boss_lease_store::GUARD_NAME;

pub use household::end_orphans;
pub use leftovers::end_leftovers_at_once;
pub use process::{GUARD, run};
pub use tie::die_with_us;

/// A program and its settings, before it is started behind its guards.
#[derive(Debug)]
pub struct Guarded {
    command: Command,
    watched: PipeReader,
    lifeline: Lifeline,
}

/// Keeps a guarded program running. When it is dropped, or its holder dies, the program and all its descendants are
/// ended.
#[derive(Debug)]
pub struct Lifeline {
    _writer: PipeWriter,
}

impl Guarded {
    /// A program by its path, or by a name to search in PATH. If it cannot be run, the guards exit with the code that a
    /// shell would use. The file is not checked here, because its disk may hang.
    pub fn new(program: impl AsRef<OsStr>, environment: &ChildEnvironment) -> io::Result<Self> {
        let (watched, writer) = io::pipe()?;
        let mut command = Command::new(OWN_PROGRAM);
        environment.give(&mut command);
        command.arg0(GUARD_NAME).arg(GUARD).arg(process::OUTER).arg(watched.as_raw_fd().to_string()).arg(program);
        Ok(Self { command, watched, lifeline: Lifeline { _writer: writer } })
    }

    /// The command of the program, for its arguments, variables, folder and streams.
    pub fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    /// Starts the program. The child is the outer guard, which leads a session and process group of its own. It ends by
    /// the program's own exit code or signal, once no descendant is left.
    pub fn spawn(self) -> io::Result<(Child, Lifeline)> {
        let Self { mut command, watched, lifeline } = self;
        tie::pass_on(command.as_std_mut(), watched.as_raw_fd());
        tie::die_with_us(command.as_std_mut());
        if let Some(limits) = descriptors::inherited() {
            tie::limit_descriptors(command.as_std_mut(), limits);
        }
        // Dropping the lifeline ends the guards and the program in order; killing the outer guard would leave the rest
        // as orphans.
        command.kill_on_drop(false);
        let child = household::started(|| command.spawn())?;
        Ok((child, lifeline))
    }
}
