//! An answer that follows a grammar: which tokens may come next, and whether it may end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use llguidance::Matcher;

use super::compiler::CompiledGrammar;
use super::error::first_words;
use crate::sampling::TokenMask;

/// The state of one answer in its grammar. Threads compute what may follow its tokens, and what may follow tokens that
/// are only foreseen.
pub struct Constraint {
    grammar: CompiledGrammar,
    work: Arc<Mutex<MaskWork>>,
    /// Tokens of the answer so far.
    taken: usize,
}

/// The masks that are wanted of one answer, and those that are there.
#[derive(Default)]
struct MaskWork {
    /// The tokens of the answer, then those that are foreseen behind them.
    wanted: Vec<u32>,
    /// The tokens that may follow the first of these, by their number.
    known: BTreeMap<usize, Result<NextToken, ConstraintError>>,
    /// None while a thread has it.
    walker: Option<MaskWalker>,
    /// Tokens from this place on are not those that the walker took.
    changed_from: Option<usize>,
}

/// A matcher, and the tokens that it took.
struct MaskWalker {
    matcher: Box<Matcher>,
    taken: Vec<u32>,
    /// Whether the tokens that may follow were computed.
    is_done: bool,
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
        let walker = MaskWalker { matcher: Box::new(grammar.matcher()), taken: Vec::new(), is_done: false };
        let work = MaskWork { walker: Some(walker), ..MaskWork::default() };
        let constraint = Self { grammar, work: Arc::new(Mutex::new(work)), taken: 0 };
        constraint.wake(lock(&constraint.work));
        constraint
    }

    /// The tokens that may come next; `None` as long as that is being computed.
    pub fn next_token(&mut self) -> Option<Result<NextToken, ConstraintError>> {
        lock(&self.work).known.get(&self.taken).cloned()
    }

    /// Takes a token of the answer that [`Self::next_token`] allowed, and begins to compute what may follow it, unless
    /// the token was foreseen.
    pub fn accept(&mut self, token: u32) {
        let mut work = lock(&self.work);
        if !work.known.contains_key(&self.taken) {
            return;
        }
        work.known.remove(&self.taken);
        if work.wanted.get(self.taken) != Some(&token) {
            work.cut(self.taken);
            work.wanted.push(token);
        }
        self.taken += 1;
        self.wake(work);
    }

    /// Begins to compute what may follow each of these tokens, which may come next one behind the other. Those that the
    /// grammar does not allow are left out.
    pub fn foresee(&mut self, tokens: &[u32]) {
        let mut work = lock(&self.work);
        let behind = work.wanted.get(self.taken..).unwrap_or_default();
        let same = behind.iter().zip(tokens).take_while(|(one, other)| one == other).count();
        let (from, rest) = (self.taken + same, &tokens[same..]);
        let Some(first) = rest.first() else { return };
        // A matcher that took a token which is not allowed would have to begin anew.
        if work.known.get(&from).is_some_and(|next| !next.as_ref().is_ok_and(|next| next.allows(*first))) {
            return;
        }
        work.cut(from);
        work.wanted.extend_from_slice(rest);
        self.wake(work);
    }

    /// Has a thread walk on, if none does.
    fn wake(&self, mut work: MutexGuard<'_, MaskWork>) {
        if work.is_walked() {
            return;
        }
        let Some(walker) = work.walker.take() else { return };
        drop(work);
        let (work, grammar) = (Arc::clone(&self.work), self.grammar.clone());
        self.grammar.threads().spawn(move || walk(&work, walker, &grammar));
    }

    /// The grammar.
    pub fn grammar(&self) -> &CompiledGrammar {
        &self.grammar
    }
}

impl MaskWork {
    /// Forgets the tokens from this place on, and what follows them.
    fn cut(&mut self, from: usize) {
        if from < self.wanted.len() {
            self.wanted.truncate(from);
            self.known.split_off(&(from + 1));
            self.changed_from = Some(self.changed_from.map_or(from, |before| before.min(from)));
        }
    }

    /// Whether there is nothing to do for the walker, which is here.
    fn is_walked(&self) -> bool {
        let done = |walker: &MaskWalker| walker.is_done && walker.taken.len() == self.wanted.len();
        self.changed_from.is_none() && self.walker.as_ref().is_some_and(done)
    }
}

/// Follows the wanted tokens up to the last one, one after another.
fn walk(work: &Mutex<MaskWork>, mut walker: MaskWalker, grammar: &CompiledGrammar) {
    let threads = grammar.threads();
    let mut masks = 0;
    loop {
        let (changed, next) = {
            let mut work = lock(work);
            let changed = work.changed_from.take().filter(|from| *from < walker.taken.len());
            let next = work.wanted.get(changed.unwrap_or(walker.taken.len())).copied();
            if changed.is_none() && next.is_none() && walker.is_done {
                work.walker = Some(walker);
                return;
            }
            (changed, next)
        };
        if masks > 0 {
            // The end of the job wakes engines that wait for the last one.
            threads.one_more();
        }
        masks += 1;
        let begun = Instant::now();
        if let Some(from) = changed {
            walker.back_to(from, grammar);
        }
        let outcome = walker.follow(next);
        threads.took(begun.elapsed());
        let mut work = lock(work);
        if work.changed_from.is_some_and(|from| from < walker.taken.len()) {
            continue;
        }
        // A token that is not allowed here has none behind it, nor has an end.
        if let Some(token) = work.wanted.get(walker.taken.len())
            && !outcome.as_ref().is_ok_and(|next| next.allows(*token))
        {
            work.wanted.truncate(walker.taken.len());
        }
        work.known.insert(walker.taken.len(), outcome);
    }
}

impl MaskWalker {
    /// Takes a token, and computes what may follow.
    fn follow(&mut self, token: Option<u32>) -> Result<NextToken, ConstraintError> {
        self.taken.extend(token);
        self.is_done = true;
        follow(&mut self.matcher, token)
    }

    /// Forgets the tokens from this place on.
    fn back_to(&mut self, from: usize, grammar: &CompiledGrammar) {
        let back = self.matcher.rollback(self.taken.len() - from);
        self.taken.truncate(from);
        if back.is_err() {
            // It met a limit of the library behind a token that did not come.
            *self.matcher = grammar.matcher();
            // A fault is told by the next mask.
            let _ = self.matcher.consume_tokens(&self.taken);
        }
    }
}

impl NextToken {
    /// Whether this token may come next.
    fn allows(&self, token: u32) -> bool {
        matches!(self, Self::OneOf(mask) if mask.allows(token))
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
        f.debug_struct("Constraint").field("taken", &self.taken).finish_non_exhaustive()
    }
}

/// A panic of the library is caught inside of it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constraint::tests::next;
    use crate::constraint::{Grammar, GrammarCompiler, MaskThreads};
    use crate::fake::byte_vocabulary;

    fn tokens(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    #[test]
    fn en_8_a_token_that_is_not_allowed_never_comes_to_the_matcher() {
        let threads = Arc::new(MaskThreads::start().unwrap());
        let compiler = GrammarCompiler::new(&byte_vocabulary(), threads).unwrap();
        let grammar = compiler.compile(&Grammar::Regex("(ab|ac){1,9}".to_owned())).unwrap();
        let mut constraint = Constraint::begin(grammar);
        let _ = next(&mut constraint);
        // Its mask is known.
        constraint.foresee(&tokens("xab"));
        assert!(lock(&constraint.work).wanted.is_empty());
        // The mask behind `a` is not, or soon will be.
        constraint.foresee(&tokens("axb"));
        constraint.accept(u32::from(b'a'));
        let _ = next(&mut constraint);
        assert_eq!(lock(&constraint.work).wanted, tokens("a"));
        constraint.foresee(&tokens("bacac"));
        for token in tokens("bacab") {
            assert!(next(&mut constraint).allows(token));
            constraint.accept(token);
        }
        assert!(next(&mut constraint).allows(u32::from(b'a')));
    }
}
