//! The meaning of a model's numbers for its labels.

/// How a model's numbers for its labels become shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LabelShares {
    /// Each number by itself, by the logistic function.
    #[default]
    Apart,
    /// All together, by softmax.
    Together,
}
