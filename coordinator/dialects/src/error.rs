//! Errors of translations: requests that have no translation, answers without a usable form, and errors that an engine
//! or a provider reported. The HTTP layer chooses the code and the status that a client gets for each.

use std::fmt;
use std::time::Duration;

/// A request or an answer that cannot be translated, or an error of the other side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialectError {
    /// The fault, for programs.
    pub fault: DialectFault,
    /// The fault and its remedy, for people.
    pub message: String,
    /// The field of the request that is at fault.
    pub field: Option<String>,
    /// The time until another try makes sense.
    pub retry_after: Option<Duration>,
}

/// Faults that translations find or pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialectFault {
    /// A field is missing, or its value is invalid.
    Invalid,
    /// The other side cannot do what a field demands.
    Unsupported,
    /// The other side's answer has no usable form.
    UnusableAnswer,
    /// An external engine answered with an error.
    Engine {
        /// The kind of error.
        fault: EngineFault,
        /// The status of its answer.
        status: u16,
    },
    /// A cloud provider answered with an error.
    Provider(ProviderFault),
}

/// Errors of external engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineFault {
    /// The prompt does not fit the model's context.
    PromptTooLong,
    /// The request is malformed.
    InvalidRequest,
    /// The engine or its model cannot do this.
    Unsupported,
    /// The request is too large.
    TooLarge,
    /// The engine's queue is full.
    Busy,
    /// The engine failed, or refuses our key: no fault of the request.
    Failed,
}

/// Errors of cloud providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderFault {
    /// The provider accepts no further requests for now.
    RateLimited,
    /// The provider is overloaded.
    Overloaded,
    /// The prompt does not fit the model's context.
    PromptTooLong,
    /// The request is malformed.
    InvalidRequest,
    /// The provider does not accept the key configured here.
    KeyRefused,
    /// The provider has no such model.
    UnknownModel,
    /// The request is too large.
    TooLarge,
    /// The provider failed.
    Failed,
}

impl DialectError {
    pub(crate) fn new(fault: DialectFault, message: impl Into<String>) -> Self {
        Self { fault, message: message.into(), field: None, retry_after: None }
    }

    /// The error for a field that is missing or has an invalid value.
    pub(crate) fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(DialectFault::Invalid, message) }
    }

    /// The error for a field whose demand cannot be met.
    pub(crate) fn unsupported(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(DialectFault::Unsupported, message) }
    }
}

impl From<model_boss_protocol::BadThinking> for DialectError {
    fn from(error: model_boss_protocol::BadThinking) -> Self {
        Self::invalid(error.field, error.message)
    }
}

impl From<model_boss_protocol::UnmetDemand> for DialectError {
    fn from(error: model_boss_protocol::UnmetDemand) -> Self {
        Self::unsupported(error.field, error.message)
    }
}

impl fmt::Display for DialectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DialectError {}
