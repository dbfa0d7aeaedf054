//! Why a request of the Responses API cannot become a chat.

/// A fault of a request, by its field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponsesRefusal {
    /// A field is missing, or has a form that the API does not have.
    #[error("{message}")]
    Malformed {
        /// The place in the request.
        field: String,
        /// The fault, in words.
        message: String,
    },
    /// A field asks for a service that only OpenAI's own servers have.
    #[error("{message}")]
    NotHere {
        /// The place in the request.
        field: String,
        /// The service, and what to do without it.
        message: String,
    },
}

impl ResponsesRefusal {
    pub(super) fn malformed(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Malformed { field: field.into(), message: message.into() }
    }

    pub(super) fn not_here(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::NotHere { field: field.into(), message: message.into() }
    }
}
