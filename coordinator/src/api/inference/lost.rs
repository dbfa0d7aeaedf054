//! Losses of workers, and answers that cannot be used, before an answer began.

use model_boss_dialects::{DialectError, DialectFault};
use model_boss_http::offload::WorkPanicked;
use model_boss_http::upstream::UpstreamError;
use model_boss_protocol::ApiError;

use super::answer_body::BodyError;
use crate::refusals::of_dialect;

/// The worker died, or sent an invalid answer, before the answer began.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    #[error("it has no address yet")]
    NotReady,
    #[error(transparent)]
    Refused(ApiError),
    #[error("{0}")]
    Nonsense(String),
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error("the connection broke in its answer")]
    Body(#[source] hyper::Error),
}

impl From<DialectError> for Lost {
    fn from(error: DialectError) -> Self {
        match error.fault {
            DialectFault::UnusableAnswer => Self::Nonsense(error.message),
            DialectFault::Invalid
            | DialectFault::Unsupported
            | DialectFault::Engine { .. }
            | DialectFault::Provider(_) => Self::Refused(of_dialect(error)),
        }
    }
}

impl From<WorkPanicked> for Lost {
    fn from(error: WorkPanicked) -> Self {
        Self::Refused(error.into())
    }
}

impl From<BodyError> for Lost {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::Broken(error) => Self::Body(error),
            BodyError::Unusable(error) => error.into(),
            BodyError::Memory(error) => Self::Refused(error.into()),
            BodyError::Panicked(error) => error.into(),
        }
    }
}

impl Lost {
    /// Whether a fresh worker would give the same invalid answer.
    pub(super) fn is_nonsense(&self) -> bool {
        match self {
            Self::NotReady | Self::Refused(_) | Self::Body(_) => false,
            Self::Upstream(error) => error.is_nonsense(),
            Self::Nonsense(_) => true,
        }
    }

    /// Whether the worker accepted the request and closed the connection, either because it died or as a faulty answer.
    pub(super) fn is_broken_off(&self) -> bool {
        match self {
            Self::NotReady | Self::Refused(_) | Self::Nonsense(_) => false,
            Self::Upstream(error) => error.is_broken_off(),
            Self::Body(_) => true,
        }
    }
}
