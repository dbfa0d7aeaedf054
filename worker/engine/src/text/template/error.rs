//! Reasons why a chat template gave no prompt.

use super::fault::{RenderFault, TemplateFailure};
use super::syntax_error::SyntaxError;

/// The template did not give a prompt.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The text is no valid template.
    #[error("it is not a valid Jinja template")]
    Syntax(#[source] SyntaxError),
    /// The template refused the conversation.
    #[error("the model's chat template refuses this conversation: {0}")]
    Refused(String),
    /// The template exceeded a limit.
    #[error("the model's chat template {0}")]
    Limit(&'static str),
    /// The template failed.
    #[error("the model's chat template fails on this conversation")]
    Failed(#[source] TemplateFailure),
}

impl From<RenderFault> for TemplateError {
    fn from(fault: RenderFault) -> Self {
        match fault {
            RenderFault::Raised(message) => Self::Refused(message),
            RenderFault::Limit(what) => Self::Limit(what),
            RenderFault::Failed { message, line } => Self::Failed(TemplateFailure { message, line }),
        }
    }
}
