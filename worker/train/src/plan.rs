//! The settings of a training run.

use std::path::PathBuf;
use std::time::Duration;

use crate::optimizer::OptimizerSettings;

/// The settings of a run. All but the checkpoint's determine the weights.
#[derive(Clone, Debug)]
pub struct TrainPlan {
    /// The seed of the first weights, the order and the wordings.
    pub seed: u64,
    /// The number of steps.
    pub steps: usize,
    /// Rows of a batch.
    pub rows: usize,
    /// Tokens of a row.
    pub time: usize,
    /// The number of parts of a batch that are computed in parallel. Their gradients are rounded before they are
    /// summed.
    pub parts: usize,
    /// The settings of parameter updates.
    pub settings: OptimizerSettings,
    /// The checkpoint from which a stopped run continues.
    pub checkpoint: PathBuf,
    /// The interval of checkpoints: the most training time that a stop loses.
    pub checkpoint_every: Duration,
}
