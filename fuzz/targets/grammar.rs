//! Grammars of strangers: each is refused, or can be followed for some tokens.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use model_boss_engine::constraint::{Grammar, GrammarChecker};
use model_boss_engine::fake::byte_vocabulary;

static CHECKER: LazyLock<GrammarChecker> = LazyLock::new(|| GrammarChecker::new(&byte_vocabulary()).expect("a vocabulary"));

fuzz_target!(|data: &[u8]| {
    let Some((which, bytes)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let text = text.to_owned();
    let grammar = match which % 5 {
        0 => Grammar::JsonSchema(text),
        1 => Grammar::Regex(text),
        2 => Grammar::Lark(text),
        3 => Grammar::Gbnf(text),
        _ => Grammar::Choice(text.split(',').map(str::to_owned).collect()),
    };
    let _ = CHECKER.check(&grammar);
});
