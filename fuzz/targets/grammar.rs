//! Grammars of strangers: each is refused, or its answers can be followed. Both checks of a grammar agree, every token
//! that a mask allows is taken, and a form that goes on has a token to go on with.
#![no_main]

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use model_boss_engine::constraint::{
    CompiledGrammar, Constraint, Grammar, GrammarChecker, GrammarCompiler, MaskThreads, NextToken,
};
use model_boss_engine::fake::byte_vocabulary;
use model_boss_engine::tools::{Tool, ToolChoice, ToolFormat, ToolMarkers, ToolPlan};

/// Tokens of an answer that are followed.
const TOKENS: usize = 48;

/// Far longer than any mask over so few tokens takes, even with a sanitizer.
const PATIENCE: Duration = Duration::from_secs(5);

static CHECKER: LazyLock<GrammarChecker> = LazyLock::new(|| GrammarChecker::new(&byte_vocabulary()).expect("a vocabulary"));

static COMPILER: LazyLock<GrammarCompiler> = LazyLock::new(|| {
    let threads = Arc::new(MaskThreads::start().expect("threads"));
    GrammarCompiler::new(&byte_vocabulary(), threads).expect("a vocabulary")
});

fuzz_target!(|data: &[u8]| {
    let Some((which, bytes)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let text = text.to_owned();
    let grammar = match which % 8 {
        0 => Grammar::JsonSchema(text),
        1 => Grammar::Regex(text),
        2 => Grammar::Lark(text),
        3 => Grammar::Gbnf(text),
        4 => Grammar::Choice(text.split(',').map(str::to_owned).collect()),
        _ => match calls(usize::from(which / 8), &text) {
            Some(calls) => calls,
            None => return,
        },
    };
    let checked = CHECKER.check(&grammar);
    match COMPILER.compile(&grammar) {
        Ok(compiled) => {
            assert_eq!(checked, Ok(()), "{grammar:?}");
            follow(&compiled, bytes);
        }
        Err(error) => {
            assert!(checked.is_err(), "{grammar:?}: {error}");
            assert!(!error.to_string().is_empty());
        }
    }
});

/// Calls of a tool with this schema, in one of the formats.
fn calls(format: usize, schema: &str) -> Option<Grammar> {
    let format = ToolFormat::ALL[format % ToolFormat::ALL.len()];
    // The schema's length decides the rest of the plan.
    let bit = |place: usize| schema.len() >> place & 1 == 1;
    let parameters: serde_json::Value = serde_json::from_str(schema).ok()?;
    let tool = Tool { name: "f".to_owned(), parameters, strict: bit(0) };
    let choice = if bit(1) { ToolChoice::Auto } else { ToolChoice::Required };
    let answer = bit(2).then(|| Grammar::JsonSchema(schema.to_owned()));
    let plan = ToolPlan { format, tools: vec![tool], choice, parallel: bit(3), answer, spells_thoughts: bit(4) };
    plan.grammar(&ToolMarkers::default()).ok()
}

/// Follows an answer; the bytes decide which of the allowed tokens comes next.
fn follow(compiled: &CompiledGrammar, choices: &[u8]) {
    let vocabulary = u32::try_from(byte_vocabulary().len()).expect("few tokens");
    let mut constraint = Constraint::begin(compiled.clone());
    for choice in choices.iter().rev().cycle().take(TOKENS) {
        match next(&mut constraint) {
            Some(NextToken::OneOf(mask)) => {
                let allowed: Vec<u32> = (0..vocabulary).filter(|token| mask.allows(*token)).collect();
                assert!(!allowed.is_empty(), "the answer can neither go on nor end");
                let token = allowed[usize::from(*choice) % allowed.len()];
                if choice % 3 == 0 {
                    // A draft of which the first token may be right, and others may not be allowed.
                    constraint.foresee(&[token, u32::from(*choice), token]);
                }
                constraint.accept(token);
            }
            Some(NextToken::End) | None => return,
        }
    }
}

/// The next tokens; `None` where the grammar came to the limits on its size.
fn next(constraint: &mut Constraint) -> Option<NextToken> {
    let threads = Arc::clone(constraint.grammar().threads());
    let begun = Instant::now();
    loop {
        let seen = threads.done();
        match constraint.next_token() {
            Some(Ok(next)) => return Some(next),
            Some(Err(error)) => {
                let words = error.to_string();
                assert!(!words.contains("doesn't satisfy"), "a token that the mask allowed was refused: {words}");
                return None;
            }
            None => threads.wait_beyond(seen, PATIENCE),
        }
        assert!(begun.elapsed() < PATIENCE, "a mask takes too long");
    }
}
