//! An answer that follows a grammar: which tokens may come next, and whether it may end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use llguidance::Matcher;

use super::compiler::CompiledGrammar;
use super::error::first_words;
use crate::sampling::TokenMask;

/// The state of one answer in its grammar.
pub struct Constraint {
    grammar: CompiledGrammar,
    /// Where the threads leave the mask.
    slot: Arc<Mutex<Option<MaskOutcome>>>,
    /// The outcome taken from the slot.
    ready: Option<MaskOutcome>,
}

/// A matcher that took a token, and what may follow.
struct MaskOutcome {
    matcher: Box<Matcher>,
    next: Result<NextToken, ConstraintError>,
}

/// The tokens that may come next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextToken {
    /// One of these; tokens that end an answer are among them only where the grammar may end.
    OneOf(Arc<TokenMask>),
    /// The grammar allows nothing more.
    End,
}

/// A grammar became too large while an answer followed it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer cannot be held to its form any longer: {0}")]
pub struct ConstraintError(String);

impl Constraint {
    /// An answer that begins. The mask of its first token is computed at once.
    pub fn begin(grammar: CompiledGrammar) -> Self {
        let matcher = Box::new(grammar.matcher());
        let mut constraint = Self { grammar, slot: Arc::default(), ready: None };
        constraint.compute(matcher, None);
        constraint
    }

    /// The tokens that may come next; `None` as long as that is being computed.
    pub fn next_token(&mut self) -> Option<Result<NextToken, ConstraintError>> {
        if self.ready.is_none() {
            self.ready = lock(&self.slot).take();
        }
        self.ready.as_ref().map(|outcome| outcome.next.clone())
    }

    /// Takes a token of the answer that [`Self::next_token`] allowed, and begins to compute what may follow it.
    pub fn accept(&mut self, token: u32) {
        if let Some(outcome) = self.ready.take() {
            self.compute(outcome.matcher, Some(token));
        }
    }

    fn compute(&mut self, mut matcher: Box<Matcher>, token: Option<u32>) {
        let (slot, threads) = (Arc::clone(&self.slot), Arc::clone(self.grammar.threads()));
        let job = move || {
            let begun = Instant::now();
            let next = follow(&mut matcher, token);
            threads.took(begun.elapsed());
            *lock(&slot) = Some(MaskOutcome { matcher, next });
        };
        self.grammar.threads().spawn(job);
    }

    /// The grammar.
    pub fn grammar(&self) -> &CompiledGrammar {
        &self.grammar
    }
}

fn follow(matcher: &mut Matcher, token: Option<u32>) -> Result<NextToken, ConstraintError> {
    let failed = |error: &dyn std::fmt::Display| ConstraintError(first_words(&error.to_string()));
    if let Some(token) = token {
        matcher.consume_token(token).map_err(|error| failed(&error))?;
    }
    if matcher.is_stopped() && matcher.stop_reason().is_ok() {
        return Ok(NextToken::End);
    }
    let may_end = matcher.is_accepting().map_err(|error| failed(&error))?;
    match matcher.compute_mask() {
        Ok(mask) => Ok(NextToken::OneOf(Arc::new(TokenMask::from_words(mask.as_slice().to_vec())))),
        // A vocabulary without a token that ends an answer has none to offer here.
        Err(_) if may_end => Ok(NextToken::End),
        Err(error) => Err(failed(&error)),
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("is_ready", &self.ready.is_some()).finish_non_exhaustive()
    }
}

/// A panic of the library is caught inside of it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
