//! A batch as OpenAI's API shows it.

use std::collections::BTreeMap;

use model_boss_jobs::{BatchCounts, BatchRecord, BatchState, BatchUsage};
use schemars::JsonSchema;
use serde::Serialize;

/// A batch.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct BatchObject {
    id: String,
    /// Always `batch`.
    object: &'static str,
    /// The route of every line.
    endpoint: String,
    /// The faults of the file, where it has any.
    errors: Option<BatchErrors>,
    input_file_id: String,
    /// The time within which every line should be answered.
    completion_window: String,
    /// `validating`, `failed`, `in_progress`, `finalizing`, `completed`, `expired`, `cancelling` or `cancelled`.
    status: &'static str,
    /// The file of answers, at the end.
    output_file_id: Option<String>,
    /// The file of errors, at the end.
    error_file_id: Option<String>,
    created_at: u64,
    in_progress_at: Option<u64>,
    expires_at: Option<u64>,
    finalizing_at: Option<u64>,
    completed_at: Option<u64>,
    failed_at: Option<u64>,
    expired_at: Option<u64>,
    cancelling_at: Option<u64>,
    cancelled_at: Option<u64>,
    /// The model, where all lines name the same.
    model: Option<String>,
    /// The numbers of lines.
    request_counts: BatchNumbers,
    /// The tokens of the answers so far.
    usage: BatchTokens,
    /// The client's own notes.
    metadata: Option<BTreeMap<String, String>>,
}

/// The faults of a file.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct BatchErrors {
    object: &'static str,
    data: Vec<BatchFault>,
}

/// A fault of a line.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct BatchFault {
    code: String,
    message: String,
    param: Option<String>,
    /// The number of the line, from 1.
    line: Option<usize>,
}

/// The numbers of lines.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
struct BatchNumbers {
    total: usize,
    completed: usize,
    failed: usize,
}

/// The tokens of a batch's answers.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
struct BatchTokens {
    input_tokens: u64,
    input_tokens_details: CachedTokens,
    output_tokens: u64,
    output_tokens_details: ThoughtTokens,
    total_tokens: u64,
}

/// Tokens of prompts that did not have to be evaluated.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
struct CachedTokens {
    cached_tokens: u64,
}

/// Tokens of answers that are thoughts.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
struct ThoughtTokens {
    reasoning_tokens: u64,
}

impl From<BatchUsage> for BatchTokens {
    fn from(usage: BatchUsage) -> Self {
        let BatchUsage { input_tokens, cached_tokens, output_tokens, reasoning_tokens } = usage;
        Self {
            input_tokens,
            input_tokens_details: CachedTokens { cached_tokens },
            output_tokens,
            output_tokens_details: ThoughtTokens { reasoning_tokens },
            total_tokens: input_tokens.saturating_add(output_tokens),
        }
    }
}

impl BatchObject {
    /// The view of a batch. `counts` are those of the run, while there is one.
    pub(super) fn of(batch: &BatchRecord, counts: Option<BatchCounts>) -> Self {
        let BatchCounts { total, completed, failed, usage } = counts.unwrap_or(batch.counts);
        let faults = batch.errors.iter().map(|error| BatchFault {
            code: error.code.clone(),
            message: error.message.clone(),
            param: error.param.clone(),
            line: error.line,
        });
        let errors = BatchErrors { object: "list", data: faults.collect() };
        let file = |has: bool, name: &String| (has && batch.state.is_final()).then(|| name.clone());
        Self {
            id: batch.id.clone(),
            object: "batch",
            endpoint: batch.endpoint.clone(),
            errors: Some(errors).filter(|errors| !errors.data.is_empty()),
            input_file_id: batch.input_file.clone(),
            completion_window: batch.window.clone(),
            status: batch.state.as_str(),
            output_file_id: file(batch.has_output, &batch.output_file),
            error_file_id: file(batch.has_errors, &batch.error_file),
            created_at: batch.created.whole_seconds(),
            in_progress_at: batch.since(BatchState::InProgress),
            expires_at: Some(batch.expires.whole_seconds()),
            finalizing_at: batch.since(BatchState::Finalizing),
            completed_at: batch.since(BatchState::Completed),
            failed_at: batch.since(BatchState::Failed),
            expired_at: batch.since(BatchState::Expired),
            cancelling_at: batch.since(BatchState::Cancelling),
            cancelled_at: batch.since(BatchState::Cancelled),
            model: batch.model.clone(),
            request_counts: BatchNumbers { total, completed, failed },
            usage: usage.into(),
            metadata: Some(batch.metadata.clone()).filter(|metadata| !metadata.is_empty()),
        }
    }

    /// The name.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The state as clients see it.
    pub(crate) const fn status(&self) -> &'static str {
        self.status
    }

    /// Whether the batch has ended.
    pub(crate) fn has_ended(&self) -> bool {
        ["failed", "completed", "expired", "cancelled"].contains(&self.status)
    }
}
