//! The answers of a worker's program about itself, and about work that takes long.

use serde::{Deserialize, Serialize};

use crate::{InstructionSet, SandboxState};

/// The answer of `model-boss-worker about`. The program loads no model for it, and opens no device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerAbout {
    /// The program's version.
    pub version: String,
    /// The instructions that products on the CPU use.
    pub cpu_features: InstructionSet,
    /// The sandbox that this kernel gave the process.
    pub sandbox: SandboxState,
    /// The threads that compute on the CPU.
    pub threads: usize,
    /// The lowest compute capability that the build for NVIDIA GPUs serves, as 80 for 8.0. `None`: a build without
    /// CUDA.
    pub cuda: Option<u32>,
}

/// A line on standard error of a worker's program that writes a file, where its caller asked for such lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileProgress {
    /// The bytes that are done.
    pub completed: u64,
    /// The bytes in all.
    pub total: u64,
    /// The part that is written now.
    pub part: String,
}

impl FileProgress {
    /// The beginning of such a line.
    const MARK: &'static str = "progress ";
    /// The variable by which a caller asks for such lines.
    pub const VARIABLE: &'static str = "MODEL_BOSS_WORKER_PROGRESS";

    /// The progress as a line.
    pub fn to_line(&self) -> String {
        format!("{}{}", Self::MARK, serde_json::to_string(self).unwrap_or_default())
    }

    /// The progress in a line, if the line is one.
    pub fn of_line(line: &str) -> Option<Self> {
        serde_json::from_str(line.strip_prefix(Self::MARK)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_1_a_line_of_progress_is_told_from_other_lines() {
        let progress = FileProgress { completed: 1, total: 4, part: "blk.0".to_owned() };
        assert_eq!(FileProgress::of_line(&progress.to_line()), Some(progress));
        for other in ["", "progress", "progress of a kind", "{\"completed\":1}"] {
            assert_eq!(FileProgress::of_line(other), None, "{other}");
        }
    }
}
