//! A batch and its states, as OpenAI's API names them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::usage::BatchUsage;
use crate::record::JobOwner;
use crate::time::WallTime;

/// The most errors of a file that are shown.
pub const MAX_LINE_ERRORS: usize = 100;

/// The state of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchState {
    /// The file is being checked.
    Validating,
    /// The file has faults, and no line was sent.
    Failed,
    /// Lines are being answered.
    InProgress,
    /// Every line is answered, and the files are being written.
    Finalizing,
    /// The files are there.
    Completed,
    /// The time was over before every line was answered. The files are there.
    Expired,
    /// Lines in flight are being ended.
    Cancelling,
    /// The batch was cancelled. The files are there, with what was answered.
    Cancelled,
}

impl BatchState {
    /// The state as the API has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Failed => "failed",
            Self::InProgress => "in_progress",
            Self::Finalizing => "finalizing",
            Self::Completed => "completed",
            Self::Expired => "expired",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing follows.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Failed | Self::Completed | Self::Expired | Self::Cancelled)
    }
}

/// A fault of one line, or of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchLineError {
    /// The code.
    pub code: String,
    /// The fault and its remedy.
    pub message: String,
    /// The number of the line, from 1.
    pub line: Option<usize>,
    /// The field.
    pub param: Option<String>,
}

/// The numbers of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchCounts {
    /// All lines.
    pub total: usize,
    /// Lines with an answer.
    pub completed: usize,
    /// Lines with an error.
    pub failed: usize,
    /// The tokens of the answers.
    #[serde(default)]
    pub usage: BatchUsage,
}

/// A wish for a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchOrder {
    /// The name.
    pub id: String,
    /// The sender.
    pub owner: JobOwner,
    /// The route of every line.
    pub endpoint: String,
    /// The file of lines.
    pub input_file: String,
    /// The names of the files of answers and of errors.
    pub output_files: (String, String),
    /// The time within which every line should be answered.
    pub window: Duration,
    /// The window as the client wrote it.
    pub window_text: String,
    /// The client's own notes.
    pub metadata: BTreeMap<String, String>,
    /// The time for which its files of answers and errors are kept, where the client set one.
    pub output_keep: Option<Duration>,
}

/// A batch as it is kept. The numbers of answered lines are those of its files, and are kept only at its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchRecord {
    /// The name.
    pub id: String,
    /// The sender.
    pub owner: JobOwner,
    /// The route of every line.
    pub endpoint: String,
    /// The file of lines.
    pub input_file: String,
    /// The file of answers, which is visible at the end.
    pub output_file: String,
    /// The file of errors, which is visible at the end.
    pub error_file: String,
    /// The window as the client wrote it.
    pub window: String,
    /// The client's own notes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// The seconds for which its files of answers and errors are kept, where the client set them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_keep: Option<u64>,
    /// The model, where all lines name the same; known once they were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The state.
    pub state: BatchState,
    /// The faults of the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<BatchLineError>,
    /// The numbers of lines at the last change of the state.
    #[serde(default)]
    pub counts: BatchCounts,
    /// Whether the file of answers has lines.
    #[serde(default)]
    pub has_output: bool,
    /// Whether the file of errors has lines.
    #[serde(default)]
    pub has_errors: bool,
    /// The time at which it was accepted.
    pub created: WallTime,
    /// The time at which it expires.
    pub expires: WallTime,
    /// The time at which each state began.
    pub times: BTreeMap<String, WallTime>,
}

impl BatchRecord {
    /// A batch that was just accepted.
    pub fn accepted(order: BatchOrder, now: WallTime) -> Self {
        let BatchOrder { id, owner, endpoint, input_file, output_files, window, window_text, metadata, output_keep } =
            order;
        Self {
            id,
            owner,
            endpoint,
            input_file,
            output_file: output_files.0,
            error_file: output_files.1,
            window: window_text,
            metadata,
            output_keep: output_keep.map(|keep| keep.as_secs()),
            model: None,
            state: BatchState::Validating,
            errors: Vec::new(),
            counts: BatchCounts::default(),
            has_output: false,
            has_errors: false,
            created: now,
            expires: now.after(window),
            times: BTreeMap::new(),
        }
    }

    /// Enters a state. A batch that has ended enters none, one that is being cancelled only its end, and none goes
    /// back.
    pub fn enter(&mut self, state: BatchState, now: WallTime) -> bool {
        let may = match (self.state, state) {
            (from, _) if from.is_final() => false,
            (BatchState::Cancelling, to) => to == BatchState::Cancelled,
            (BatchState::Finalizing, to) => {
                matches!(to, BatchState::Completed | BatchState::Expired | BatchState::Cancelling)
            }
            (BatchState::InProgress, to) => to != BatchState::Validating && to != BatchState::InProgress,
            (_, to) => to != BatchState::Validating,
        };
        if may {
            self.state = state;
            self.times.insert(state.as_str().to_owned(), now);
        }
        may
    }

    /// The time at which a state began, in seconds.
    pub fn since(&self, state: BatchState) -> Option<u64> {
        self.times.get(state.as_str()).map(|at| at.whole_seconds())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::SenderKind;

    #[test]
    fn rc_26_a_batch_goes_forward_only_and_ends_once() {
        use BatchState::{Cancelled, Cancelling, Completed, Expired, Failed, Finalizing, InProgress, Validating};
        let order = BatchOrder {
            id: "batch_1".to_owned(),
            owner: JobOwner { kind: SenderKind::Anyone, client: "a".to_owned(), key: None },
            endpoint: "/v1/embeddings".to_owned(),
            input_file: "file-1".to_owned(),
            output_files: ("file-2".to_owned(), "file-3".to_owned()),
            window: Duration::from_secs(60),
            window_text: "1m".to_owned(),
            metadata: BTreeMap::new(),
            output_keep: None,
        };
        let goes = |states: &[BatchState]| {
            let mut batch = BatchRecord::accepted(order.clone(), WallTime(1_000));
            states.iter().all(|state| batch.enter(*state, WallTime(2_000)))
        };
        for good in [
            &[InProgress, Finalizing, Completed][..],
            &[Failed],
            &[Cancelling, Cancelled],
            &[InProgress, Cancelling, Cancelled],
            &[InProgress, Finalizing, Expired],
        ] {
            assert!(goes(good), "{good:?}");
        }
        for bad in [
            &[InProgress, Validating][..],
            &[InProgress, InProgress],
            &[Failed, InProgress],
            &[Cancelling, Completed],
            &[InProgress, Finalizing, InProgress],
            &[InProgress, Finalizing, Completed, Cancelling],
        ] {
            assert!(!goes(bad), "{bad:?}");
        }
    }
}
