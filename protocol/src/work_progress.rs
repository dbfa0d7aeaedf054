//! How far a worker has come with one request.

use serde::{Deserialize, Serialize};

/// The unit in which the work of a request is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkUnit {
    /// Tokens of an answer.
    Tokens,
    /// Texts, images or documents of a request.
    Items,
    /// Seconds of sound.
    Seconds,
    /// Steps of a picture.
    Steps,
}

/// A worker's answer to `GET /progress/{id}`, for a request that it works on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkProgress {
    /// The unit of the counts.
    pub unit: WorkUnit,
    /// The amount that is done.
    pub done: u64,
    /// The whole amount; `None` where it is not known before the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// The latest text, at most [`WorkProgress::LONGEST_TEXT`] characters; empty where there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

impl WorkProgress {
    /// The most characters of the text.
    pub const LONGEST_TEXT: usize = 200;

    /// The route of a request's progress. The id is the request's `x-request-id`.
    pub fn path(id: &str) -> String {
        format!("/progress/{id}")
    }
}
