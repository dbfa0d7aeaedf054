//! Why a chat template gave no prompt.

/// The template did not give a prompt.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// It is no template.
    #[error("it is not a valid Jinja template")]
    Syntax(#[source] minijinja::Error),
    /// It refused the conversation itself.
    #[error("the model's chat template refuses this conversation: {0}")]
    Refused(String),
    /// It went over a limit.
    #[error("the model's chat template {0}")]
    Limit(&'static str),
    /// It failed.
    #[error("the model's chat template fails on this conversation")]
    Failed(#[source] minijinja::Error),
}
