//! Failures that end the process: a message for the operator, and an exit code for the coordinator.

use std::error::Error;

use model_boss_engine::DecoderError;
use model_boss_protocol::{SandboxState, WorkerExit};

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

    /// The same failure, about a part that the message names first.
    pub(crate) fn about(self, part: &str) -> Self {
        Self { message: format!("{part}: {}", self.message), ..self }
    }

    /// The same of a confined process. A sandbox that lacks something shows itself as an error of the system, and a
    /// person who reads it has to learn that.
    pub(crate) fn within(mut self, sandbox: &SandboxState) -> Self {
        const REFUSALS: [&str; 3] = ["(os error 1)", "(os error 13)", "(os error 38)"];
        let confined = sandbox.landlock.is_some() || sandbox.seccomp;
        if confined && REFUSALS.iter().any(|refusal| self.message.contains(refusal)) {
            self.message.push_str(
                "; if the file's own rights allow it, the worker's sandbox does not: sandbox = \"off\" loads without it \
                 (docs/sandbox.md)",
            );
        }
        self
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_5_a_refusal_of_the_system_names_the_sandbox() {
        let refused = |number| {
            let error = std::io::Error::from_raw_os_error(number);
            LoadFailure::new(WorkerExit::BadModel, &error)
        };
        let sandbox = SandboxState { landlock: Some(7), seccomp: true, missing: None };
        for number in [1, 13, 38] {
            let said = refused(number).within(&sandbox).to_string();
            assert!(said.contains("docs/sandbox.md"), "{said}");
        }
        for (number, sandbox) in [(2, &sandbox), (13, &SandboxState::off("sandbox = \"off\""))] {
            assert_eq!(refused(number).within(sandbox), refused(number));
        }
    }
}
