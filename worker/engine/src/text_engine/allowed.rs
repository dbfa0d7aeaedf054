//! The tokens that may come next in an answer: its form and its thoughts decide.

use std::sync::Arc;

use crate::constraint::{Constraint, NextToken};
use crate::engine::WorkError;
use crate::sampling::TokenMask;
use crate::text::{NextPart, Thoughts, Vocabulary};

/// The tokens that a sequence may go on with.
pub(super) enum Allowed {
    /// Those of the mask, and one more.
    Masked(Arc<TokenMask>, Option<u32>),
    /// All but those that end an answer: it has not begun.
    NoEnd,
    /// All.
    Any,
    /// None: the answer is complete.
    Nothing,
}

/// Whether an answer goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerNext {
    Token,
    End,
}

impl Allowed {
    /// By the form and the thoughts of an answer. `None` as long as that is being computed.
    pub(super) fn of(
        constraint: Option<&mut Constraint>,
        thoughts: Option<&Thoughts>,
    ) -> Option<Result<Self, WorkError>> {
        let Some(constraint) = constraint else { return Some(Ok(Self::Any)) };
        let opening = match thoughts.map(Thoughts::next) {
            Some(NextPart::NoAnswer) => return Some(Ok(Self::NoEnd)),
            Some(NextPart::Answer { opening }) => opening,
            None => None,
        };
        Some(match constraint.next_token()? {
            Ok(NextToken::OneOf(mask)) => Ok(Self::Masked(mask, opening)),
            Ok(NextToken::End) => Ok(Self::Nothing),
            Err(error) => Err(error.into()),
        })
    }

    /// Makes all other tokens impossible.
    pub(super) fn apply(self, logits: &mut [f32], vocabulary: &Vocabulary) -> AnswerNext {
        match self {
            Self::Any => {}
            Self::Masked(mask, opening) => mask.apply(logits, opening),
            Self::NoEnd => {
                for token in &vocabulary.special().end {
                    if let Some(logit) = logits.get_mut(*token as usize) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
            Self::Nothing => return AnswerNext::End,
        }
        AnswerNext::Token
    }
}
