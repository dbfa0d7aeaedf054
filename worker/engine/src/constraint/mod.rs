//! Grammars that bind an answer: compiled over a model's vocabulary, and followed token by token. Knows no HTTP, no
//! chat template and no tokenizer.
//!
//! A [`GrammarCompiler`] holds a vocabulary as a tree of bytes. It compiles a [`Grammar`] once, and every answer
//! follows its own [`Constraint`]. The mask of the next token is computed on [`MaskThreads`] while the decoder runs.

mod compiler;
mod error;
mod follow;
mod formats;
mod gbnf;
mod grammar;
mod limits;
mod literal;
mod malformed;
mod masks;
mod normal;
mod numbers;
mod rehearsal;
mod schema_fault;
#[cfg(test)]
mod tests;
mod texts;
mod threads;
mod unmet;

pub use compiler::{CompiledGrammar, GrammarChecker, GrammarCompiler};
pub use error::GrammarError;
pub use follow::{Constraint, ConstraintError, NextToken};
pub use gbnf::{GbnfError, lark_of_gbnf};
pub use grammar::Grammar;
pub(crate) use literal::literal;
pub(crate) use normal::{normalised, parts};
pub(crate) use numbers::{INTEGER, NUMBER};
pub(crate) use schema_fault::endless;
pub(crate) use texts::{TextSet, can_be_met};
pub use threads::{MaskThreads, MaskTimes};
