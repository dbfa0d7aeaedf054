//! Files that clients upload, and those that batches write.

use serde::{Deserialize, Serialize};

use crate::record::JobOwner;
use crate::time::WallTime;

/// The use of a file, as OpenAI's API names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilePurpose {
    /// The requests of a batch.
    Batch,
    /// The answers or the errors of a batch.
    BatchOutput,
    /// Material of assistants.
    Assistants,
    /// Output of assistants.
    AssistantsOutput,
    /// Material to train on.
    #[serde(rename = "fine-tune")]
    FineTune,
    /// Images.
    Vision,
    /// Any content.
    UserData,
    /// Material of evaluations.
    Evals,
}

impl FilePurpose {
    /// The purposes that an upload may have, as clients write them.
    pub const UPLOADS: [(&str, Self); 6] = [
        ("batch", Self::Batch),
        ("assistants", Self::Assistants),
        ("fine-tune", Self::FineTune),
        ("vision", Self::Vision),
        ("user_data", Self::UserData),
        ("evals", Self::Evals),
    ];

    /// The purpose as clients write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::BatchOutput => "batch_output",
            Self::Assistants => "assistants",
            Self::AssistantsOutput => "assistants_output",
            Self::FineTune => "fine-tune",
            Self::Vision => "vision",
            Self::UserData => "user_data",
            Self::Evals => "evals",
        }
    }
}

/// A file that is kept for its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredUpload {
    /// The name, such as `file-…`.
    pub id: String,
    /// The owner.
    pub owner: JobOwner,
    /// The name that the client gave it.
    pub filename: String,
    /// The use.
    pub purpose: FilePurpose,
    /// The size.
    pub bytes: u64,
    /// The time at which it was whole.
    pub created: WallTime,
    /// The time at which it is removed, if one was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<WallTime>,
}
