//! The reasons why the facts about a model make no decoder, whatever format they come from.

use model_boss_weights::gguf::KeyError;

/// The reason why facts make no decoder.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FactError {
    /// A field has the wrong type.
    #[error("{0}")]
    Malformed(String),
    /// A key of GGUF is missing or has the wrong type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A feature of the model is not supported.
    #[error("{0}")]
    Unsupported(String),
    /// The numbers contradict each other, or no model can have them.
    #[error("{0}")]
    Inconsistent(String),
}

/// A fact, if the model has it.
pub(crate) type FoundFact<T> = Result<Option<T>, FactError>;
