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
    /// A field asks for something that no model gives here, such as a service of OpenAI's own servers.
    #[error("{message}")]
    NotHere {
        /// The place in the request.
        field: String,
        /// The thing that is missing, and what to do without it.
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
