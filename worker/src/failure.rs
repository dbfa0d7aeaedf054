//! Failures that end the process: a message for the operator, and an exit code for the coordinator.

use std::error::Error;

use model_boss_engine::DecoderError;
use model_boss_protocol::WorkerExit;

/// A failure that ends the process, with a message for the operator and an exit code for the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LoadFailure {
    exit: WorkerExit,
    message: String,
}

impl LoadFailure {
    /// From an error, with everything that caused it.
    pub fn new(exit: WorkerExit, error: &(dyn Error + 'static)) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let words = error.to_string();
            // Transparent errors repeat their source.
            if !message.ends_with(&words) {
                message = format!("{message}: {words}");
            }
            cause = error.source();
        }
        Self { exit, message }
    }

    /// The exit code for the coordinator.
    pub fn exit(&self) -> WorkerExit {
        self.exit
    }

    /// A failure with this message.
    pub fn message(exit: WorkerExit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    /// From a step that failed, for a command.
    pub(crate) fn of_step(error: DecoderError) -> Self {
        let exit = match error {
            DecoderError::OutOfMemory(_) => WorkerExit::OutOfMemory,
            DecoderError::Step(_) | DecoderError::Interrupted => WorkerExit::BadSpec,
            DecoderError::Fatal(_) => WorkerExit::DeviceLost,
        };
        Self::new(exit, &error)
    }
}
