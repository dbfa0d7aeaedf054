//! The settings of the engine for text.

use crate::batch::StepBudget;

/// Settings of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextEngineSettings {
    /// Longest prompt plus answer; the decoder's own limit when absent or larger.
    pub context_length: Option<usize>,
    /// Sequences worked on at once.
    pub max_concurrent: usize,
    /// Sequences that may wait; more are refused.
    pub max_waiting: usize,
    /// The limits of a step.
    pub step_budget: StepBudget,
    /// When tokens that probably come next are evaluated in advance.
    pub drafts: DraftUse,
}

/// When drafts are evaluated. Where a draft could change an answer there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftUse {
    /// Never.
    Never,
    /// As long as they make answers faster, by the times of earlier steps.
    #[default]
    Faster,
    /// In each step with which no answer begins, and as long as they are.
    Always,
}

impl Default for TextEngineSettings {
    fn default() -> Self {
        Self {
            context_length: None,
            max_concurrent: 8,
            max_waiting: 4_096,
            step_budget: StepBudget::default(),
            drafts: DraftUse::default(),
        }
    }
}
