//! Numbers of JSON, bounded in their length: a small model may write digits without end where a grammar lets it.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::derivre::{ExprRef, RegexAst};
use llguidance::earley::lexerspec::{LexemeClass, LexerSpec};
use llguidance::panic_utils;
use llguidance::toktrie::TokEnv;

/// Integers of up to 20 digits. Every one of 64 bits is among them, with a sign or without.
pub(crate) const INTEGER: &str = "0|-?[1-9][0-9]{0,19}";

/// Numbers of up to 20 digits in front of the point and 20 behind it, with exponents as far as those of 64 bits.
pub(crate) const NUMBER: &str =
    concat!(r"-?(0|[1-9][0-9]{0,19})(\.[0-9]{1,20})?", r"([eE](\+?([0-9]{1,2}|[12][0-9]{2}|30[0-8])|-[0-9]{1,3}))?");

/// Everything that may be a number, a text or a word of JSON.
const SCALAR: &str = r#"[-+.eE0-9]*|null|true|false|"(?s:.*)"#;

/// Texts that do not begin as a number.
const OTHERS: &str = r"([^-0-9](?s:.*))?";

/// Most work to find out something about the texts of a lexeme.
const SEARCH_BUDGET: u64 = 20_000;

/// The grammar with bounded numbers. Numbers that their schema makes longer stay as they are.
pub(super) fn with_bounded_numbers(
    grammar: TopLevelGrammar,
    env: &TokEnv,
    limits: &ParserLimits,
) -> Result<GrammarInit, String> {
    let init = GrammarInit::Serialized(grammar);
    let made = panic_utils::catch_unwind(AssertUnwindSafe(|| init.to_internal(Some(env.clone()), limits.clone())));
    let (grammar, mut lexer) = made.map_err(|error| format!("{error:#}"))?;
    for (place, expression) in lexemes_with_numbers(&mut lexer) {
        if has_endless_numbers(&mut lexer, expression) {
            bound(&mut lexer, place, expression);
        }
    }
    Ok(GrammarInit::Internal(grammar, lexer))
}

/// The places and expressions of lexemes that may begin as a number.
///
/// The library does not tell the expression of a lexeme, but of an expression the lexeme that has it.
fn lexemes_with_numbers(lexer: &mut LexerSpec) -> Vec<(usize, ExprRef)> {
    let others: Vec<u8> = (0..=u8::MAX).filter(|byte| !matches!(byte, b'-' | b'0'..=b'9')).collect();
    let known = lexer.lexemes.len();
    let mut left: BTreeSet<usize> = (0..known).collect();
    left.retain(|place| !others.iter().any(|byte| lexer.has_forced_bytes(&lexer.lexemes[*place], &[*byte])));
    let classes: BTreeSet<usize> = left.iter().map(|place| lexer.lexemes[*place].class().as_usize()).collect();
    let (current, expressions) = (lexer.current_class, lexer.regex_builder.exprset().len() as u32);
    let mut found = Vec::new();
    for class in classes {
        lexer.current_class = LexemeClass::new(class);
        for expression in (0..expressions).map(ExprRef::new) {
            let place = add(lexer, RegexAst::ExprRef(expression));
            lexer.lexemes.truncate(known);
            found.extend(place.filter(|place| left.remove(place)).map(|place| (place, expression)));
        }
    }
    lexer.current_class = current;
    found
}

/// Whether the texts of an expression are scalars of JSON, with some that are longer than bounded numbers, and some
/// that are not.
fn has_endless_numbers(lexer: &mut LexerSpec, expression: ExprRef) -> bool {
    let all = || RegexAst::ExprRef(expression);
    let not = |expression: &str| RegexAst::Not(Box::new(RegexAst::Regex(expression.to_owned())));
    let mut has_none = |parts: Vec<RegexAst>| {
        let builder = &mut lexer.regex_builder;
        let made = builder.mk(&RegexAst::And(parts)).and_then(|set| builder.to_regex_limited(set, SEARCH_BUDGET));
        made.ok().map(|mut set| set.always_empty())
    };
    has_none(vec![all(), not(SCALAR)]) == Some(true)
        && has_none(vec![all(), not(NUMBER), not(OTHERS)]) == Some(false)
        && has_none(vec![all(), RegexAst::Regex(NUMBER.to_owned())]) == Some(false)
}

/// Puts a lexeme with bounded numbers in the place of another one.
fn bound(lexer: &mut LexerSpec, place: usize, expression: ExprRef) {
    let (behind, current) = (lexer.lexemes.split_off(place), lexer.current_class);
    let Some(unbounded) = behind.first() else { return };
    lexer.current_class = unbounded.class();
    let bounded = RegexAst::Or(vec![RegexAst::Regex(NUMBER.to_owned()), RegexAst::Regex(OTHERS.to_owned())]);
    let added = add(lexer, RegexAst::And(vec![RegexAst::ExprRef(expression), bounded]));
    let kept = if added == Some(place) { 1 } else { 0 };
    lexer.lexemes.extend(behind.into_iter().skip(kept));
    lexer.current_class = current;
}

/// Adds a lexeme as those of a schema are. Returns the place of the one with the same expression, if there is one.
fn add(lexer: &mut LexerSpec, expression: RegexAst) -> Option<usize> {
    let added = lexer.add_greedy_lexeme(String::new(), expression, false, None, usize::MAX);
    added.ok().map(|place| place.as_usize())
}
