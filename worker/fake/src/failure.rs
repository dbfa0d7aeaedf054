//! Failures before a worker serves, and its exits.

use std::process::ExitCode;

use model_boss_protocol::{WorkerExit, WorkerSpecError};

use crate::{control, llama_server};

/// The reason why the process ends early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FakeFailure {
    #[error("{0}")]
    Spec(#[from] WorkerSpecError),
    #[error("the start line cannot be read")]
    Gate(#[source] std::io::Error),
    #[error("{0}")]
    Behaviour(#[from] model_boss_fake_worker::behaviour::BehaviourError),
    #[error("the test's control socket does not answer")]
    Control(#[from] control::ControlError),
    #[error("cannot listen on 127.0.0.1:{port}")]
    Port { port: u16, source: std::io::Error },
    #[error("{0}")]
    CommandLine(#[from] llama_server::CommandLineError),
    #[error("cannot start the runtime")]
    Runtime(#[source] std::io::Error),
}

impl FakeFailure {
    /// `None` for a plain failure.
    pub(super) fn exit(&self) -> Option<WorkerExit> {
        Some(match self {
            // The process that would have started the worker has ended, which is no fault of the worker.
            Self::Spec(WorkerSpecError::Closed) => WorkerExit::Clean,
            Self::Port { .. } => WorkerExit::PortInUse,
            // llama-server exits with a plain failure in this case.
            Self::CommandLine(_) => return None,
            _ => WorkerExit::BadSpec,
        })
    }
}

pub(crate) fn exit_code(exit: WorkerExit) -> ExitCode {
    ExitCode::from(u8::try_from(exit.code()).unwrap_or(1))
}

/// Ends the process at once, even if other threads hold locks.
#[allow(unsafe_code)]
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` takes any number, touches no memory of this program and does not return.
    unsafe { nix::libc::_exit(code) }
}
