//! The work that a grammar's lexer may have. The library ends all answers to a grammar that exceeds it.

/// Most states of a grammar's lexer, each of one to two KiB. Answers to the same grammar share them.
pub(super) const MOST_LEXER_STATES: usize = 50_000;

/// Most work of a grammar's lexer for one mask, some five times the library's default; 1,000 take some 25 µs. One text
/// of at most 60 characters between the tags of a tool's parameter comes up to that default.
pub(super) const MOST_LEXER_COST: usize = 1_000_000;
