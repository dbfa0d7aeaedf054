//! The smaller model that writes drafts for a worker's model.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::ByteCount;

/// A model with the same vocabulary as the worker's, whose tokens are evaluated before it is known that they come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftSpec {
    /// Its files, as [`crate::WorkerSpec::source`] has those of the worker's model.
    pub source: PathBuf,
    /// Its part of the lease.
    pub bytes: ByteCount,
}
