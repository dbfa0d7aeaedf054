//! The meaning of a model's numbers for its labels.

/// How a model's numbers for its labels become shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LabelShares {
    /// Each number by itself, by the logistic function.
    #[default]
    Apart,
    /// All together, by softmax.
    Together,
    /// They do not: each number is given as it is.
    Unchanged,
}

impl LabelShares {
    /// How numbers for so many labels become shares in answers that have no other numbers.
    #[must_use]
    pub fn between_0_and_1(self, labels: usize) -> Self {
        match self {
            Self::Unchanged if labels == 1 => Self::Apart,
            Self::Unchanged => Self::Together,
            how => how,
        }
    }
}
