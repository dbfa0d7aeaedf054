//! Reasons why a rendering stops.

use std::fmt;

/// An exception of Python's, a refusal by the template, or a limit.
#[derive(Clone, Debug)]
pub(super) enum RenderFault {
    /// The template's own words.
    Raised(String),
    /// A limit was exceeded.
    Limit(&'static str),
    /// An operation that Python or Jinja2 refuses, and the template's line.
    Failed { message: String, line: Option<u32> },
}

/// The result of a step of a rendering.
pub(super) type RenderResult<T> = Result<T, RenderFault>;

impl RenderFault {
    /// An operation that the reference refuses.
    pub(super) fn failed(message: impl fmt::Display) -> Self {
        Self::Failed { message: message.to_string(), line: None }
    }

    /// The same, with the line where it happened. The innermost line stays.
    pub(super) fn at(self, place: u32) -> Self {
        match self {
            Self::Failed { message, line: None } => Self::Failed { message, line: Some(place) },
            other => other,
        }
    }
}

/// Stops with an operation that the reference refuses.
macro_rules! refuse {
    ($($message:tt)*) => { return Err($crate::text::template::fault::RenderFault::failed(format_args!($($message)*))) };
}
pub(super) use refuse;

/// A failure of a template at a line of its source.
#[derive(Debug, thiserror::Error)]
pub struct TemplateFailure {
    pub(super) message: String,
    pub(super) line: Option<u32>,
}

impl fmt::Display for TemplateFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.line.map_or(Ok(()), |line| write!(f, " (line {line})"))
    }
}
