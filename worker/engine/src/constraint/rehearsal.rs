//! Computes masks before answers need them.
//!
//! The states of a grammar's lexer cost most when they are met first. A rehearsal makes up answers that go through as
//! many states as it can within its bounds. It runs while the prompt of the first answer is evaluated.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use llguidance::derivre::StateID;
use llguidance::{HashMap, TokenParser, panic_utils};

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
const MOST_STALE: usize = 8;

/// Tokens in a row that meet nothing new, after which an answer ends where it may.
const MOST_STALE_TOKENS: usize = 64;

/// The work of the lexer for one mask, a quarter of that at which the library ends all answers. A grammar with such
/// masks is not rehearsed any longer.
const MOST_LEXER_COST: usize = super::limits::MOST_LEXER_COST / 4;

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
    /// How often the lexer was in each state.
    states: HashMap<StateID, usize>,
    /// How often it made each move.
    moves: HashMap<LexerMove, usize>,
    limits: RehearsalLimits,
    stale: usize,
}

struct MadeUpAnswer {
    parser: TokenParser,
    length: usize,
    /// Tokens since the last that met something new.
    stale: usize,
    has_new: bool,
}

/// A move of the lexer from a state: to another, or to the end of a lexeme in front of a byte.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum LexerMove {
    To(StateID, StateID),
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
        Self { fresh, answer: None, tokens, states: HashMap::default(), moves: HashMap::default(), limits, stale: 0 }
    }

    /// Computes one mask. Returns whether more are to be computed.
    pub(super) fn go_on(&mut self) -> bool {
        let begun = Instant::now();
        let Some(masks) = self.limits.masks.checked_sub(1) else { return false };
        self.limits.masks = masks;
        let mut answer = self.answer.take().unwrap_or_else(|| MadeUpAnswer {
            parser: self.fresh.clone(),
            length: 0,
            stale: 0,
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
                next => (LexerMove::To(state, next), token),
            };
            steps.into_iter().map(step).collect()
        });
        let is_between = !parser.parser.has_pending_lexeme_bytes();
        let Some((is_known, step, token)) = self.least_used(steps, is_between) else { return Some(false) };
        answer.has_new |= !is_known;
        answer.stale = if is_known { answer.stale + 1 } else { 0 };
        if answer.stale > MOST_STALE_TOKENS && parser.is_accepting() {
            return Some(false);
        }
        *self.moves.entry(step).or_default() += 1;
        if let LexerMove::To(_, next) = step {
            *self.states.entry(next).or_default() += 1;
        }
        answer.length += 1;
        parser.consume_token(token).ok()?;
        Some(answer.length < LONGEST_ANSWER && !parser.check_stop().ok()?)
    }

    /// The step to choose, and whether it leads to nothing new.
    ///
    /// Between lexemes the least used move leads to the least used part of the grammar. Within a lexeme it would lead
    /// back to the text in front of a mark, again and again, while the mark's own states are the least used.
    fn least_used(&self, steps: Vec<(LexerMove, u32)>, is_between: bool) -> Option<(bool, LexerMove, u32)> {
        let is_known = |step: &LexerMove| match step {
            LexerMove::To(_, next) => self.states.contains_key(next),
            LexerMove::End(..) => self.moves.contains_key(step),
        };
        let uses = |step: &LexerMove| match step {
            LexerMove::To(_, next) if !is_between => self.states.get(next),
            _ => self.moves.get(step),
        };
        let rank = |step: &LexerMove| (is_known(step), uses(step).copied().unwrap_or_default());
        let ranked = steps.into_iter().map(|(step, token)| (rank(&step), step, token));
        ranked.min_by_key(|(rank, ..)| *rank).map(|((is_known, _), step, token)| (is_known, step, token))
    }
}

/// The bytes in the order in which they are tried: texts go on before they end.
fn bytes() -> impl Iterator<Item = u8> {
    let rest = (0..128_u8).filter(|byte| !byte.is_ascii_alphanumeric());
    (b'a'..=b'z').chain(b'A'..=b'Z').chain(b'0'..=b'9').chain(rest)
}
