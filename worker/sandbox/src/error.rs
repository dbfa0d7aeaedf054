//! Reasons why a process is not confined.

use model_boss_protocol::SandboxState;

/// The reason why a process is not confined as it has to be.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The operator requires what is missing.
    #[error(
        "sandbox = \"required\", and this process cannot be confined ({0}); with sandbox = \"auto\" it is confined as \
         far as possible (docs/sandbox.md)"
    )]
    Required(SandboxState),
    /// Threads that run already would stay outside.
    #[error("{0} threads run already, so a sandbox would not hold them; this is a fault of the program")]
    Threads(usize),
}
