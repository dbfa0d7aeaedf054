//! Computes masks before answers need them.
//!
//! The states of a grammar's lexer cost most when they are met first. A rehearsal makes up answers that go through as
//! many states as it can within its bounds. It runs while the prompt of the first answer is evaluated.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use llguidance::derivre::StateID;
use llguidance::{HashSet, TokenParser, panic_utils};

/// The bounds of a rehearsal.
#[derive(Clone, Copy, Debug)]
pub(super) struct RehearsalLimits {
    pub(super) answers: usize,
    pub(super) masks: usize,
    pub(super) time: Duration,
}

impl Default for RehearsalLimits {
    fn default() -> Self {
        Self { answers: 256, masks: 8_192, time: Duration::from_millis(300) }
    }
}

/// Longer answers are left.
const LONGEST_ANSWER: usize = 1_024;

/// Answers in a row that meet nothing new.
const MOST_STALE: usize = 3;

/// The work of the lexer for one mask, a quarter of that at which the library ends all answers. A grammar with such
/// masks is not rehearsed any longer.
const MOST_LEXER_COST: usize = 50_000;

/// A grammar with more states of its lexer is not rehearsed any longer. The library ends answers at some multiple.
const MOST_STATES: usize = 8_192;

/// The tokens of bytes in ASCII.
#[derive(Clone, Debug)]
pub(super) struct ByteTokens([Option<u32>; 128]);

/// Made-up answers to a grammar, one after the other.
pub(super) struct Rehearsal {
    fresh: TokenParser,
    answer: Option<MadeUpAnswer>,
    tokens: ByteTokens,
    seen: HashSet<LexerMove>,
    limits: RehearsalLimits,
    stale: usize,
    random: u64,
}

struct MadeUpAnswer {
    parser: TokenParser,
    length: usize,
    has_new: bool,
}

/// A move of the lexer: the state that a byte leads to, or the byte that a lexeme ends in front of.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum LexerMove {
    To(StateID),
    End(StateID, u8),
}

impl ByteTokens {
    /// Those of a table of each token's bytes.
    pub(super) fn new(words: &[Vec<u8>]) -> Self {
        let mut tokens = [None; 128];
        for (word, token) in words.iter().zip(0..) {
            if let [byte @ 0..=127] = word.as_slice() {
                tokens[usize::from(*byte)] = Some(token);
            }
        }
        Self(tokens)
    }
}

impl Rehearsal {
    /// The rehearsal of a grammar, whose parser is at the beginning of an answer.
    pub(super) fn new(fresh: TokenParser, tokens: ByteTokens, limits: RehearsalLimits) -> Self {
        Self { fresh, answer: None, tokens, seen: HashSet::default(), limits, stale: 0, random: 0x9e37_79b9_7f4a_7c15 }
    }

    /// Computes one mask. Returns whether more are to be computed.
    pub(super) fn go_on(&mut self) -> bool {
        let begun = Instant::now();
        let Some(masks) = self.limits.masks.checked_sub(1) else { return false };
        self.limits.masks = masks;
        let mut answer = self.answer.take().unwrap_or_else(|| MadeUpAnswer {
            parser: self.fresh.clone(),
            length: 0,
            has_new: false,
        });
        let went_on = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(self.step(&mut answer))));
        match went_on.ok().flatten() {
            Some(true) => self.answer = Some(answer),
            Some(false) => {
                self.stale = if answer.has_new { 0 } else { self.stale + 1 };
                self.limits.answers = self.limits.answers.saturating_sub(1);
            }
            None => return false,
        }
        self.limits.time = self.limits.time.saturating_sub(begun.elapsed());
        self.stale < MOST_STALE && self.limits.answers > 0 && !self.limits.time.is_zero()
    }

    /// Goes on with an answer. `false`: it is at its end. `None`: nothing more can be done.
    fn step(&mut self, answer: &mut MadeUpAnswer) -> Option<bool> {
        let parser = &mut answer.parser;
        let cost = parser.parser.lexer_stats().total_fuel_spent;
        let mask = parser.compute_mask().ok()?;
        let lexer = parser.parser.lexer_stats();
        if lexer.total_fuel_spent.saturating_sub(cost) > MOST_LEXER_COST || lexer.num_states > MOST_STATES {
            return None;
        }
        let allowed = |byte: &u8| self.tokens.0[usize::from(*byte)].filter(|token| mask.is_allowed(*token));
        let steps: Vec<(u8, u32)> = bytes().filter_map(|byte| Some((byte, allowed(&byte)?))).collect();
        let steps: Vec<(LexerMove, u32)> = parser.parser.with_recognizer(|recognizer| {
            let state = recognizer.lexer_state();
            let lexer = recognizer.lexer_mut();
            let step = |(byte, token)| match lexer.transition_start_state(state, Some(byte), &None) {
                next if next.is_dead() => (LexerMove::End(state, byte), token),
                next => (LexerMove::To(next), token),
            };
            steps.into_iter().map(step).collect()
        });
        let new = steps.iter().find(|(step, _)| !self.seen.contains(step)).copied();
        answer.has_new |= new.is_some();
        let (step, token) = match new {
            Some(new) => new,
            None if parser.is_accepting() => return Some(false),
            None => match self.towards_the_end(&steps) {
                Some(step) => step,
                None => return Some(false),
            },
        };
        self.seen.insert(step);
        answer.length += 1;
        parser.consume_token(token).ok()?;
        Some(answer.length < LONGEST_ANSWER && !parser.check_stop().ok()?)
    }

    /// One of the steps that end a lexeme, or else any.
    fn towards_the_end(&mut self, steps: &[(LexerMove, u32)]) -> Option<(LexerMove, u32)> {
        let is_end = |step: &LexerMove| match step {
            LexerMove::To(next) => next.has_lowest_match(),
            LexerMove::End(..) => true,
        };
        let ends: Vec<_> = steps.iter().filter(|(step, _)| is_end(step)).copied().collect();
        let from = if ends.is_empty() { steps } else { &ends };
        // Marsaglia's xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        from.get(self.random as usize % from.len().max(1)).copied()
    }
}

/// The bytes in the order in which they are tried: texts go on before they end.
fn bytes() -> impl Iterator<Item = u8> {
    let rest = (0..128_u8).filter(|byte| !byte.is_ascii_alphanumeric());
    (b'a'..=b'z').chain(b'A'..=b'Z').chain(b'0'..=b'9').chain(rest)
}
