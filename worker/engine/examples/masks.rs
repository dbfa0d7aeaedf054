//! Measures masks: the time between a token and the set of tokens that may follow it, over a real vocabulary.
//!
//! `cargo run --release --package model-boss-engine --example masks -- VOCABULARY.gguf`

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model_boss_engine::constraint::{Constraint, Grammar, GrammarCompiler, MaskThreads, NextToken};
use model_boss_engine::text::{Text, Tokenizer};
use model_boss_engine::tools::{Tool, ToolChoice, ToolFormat, ToolMarkers, ToolPlan};
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let path = std::env::args().nth(1).ok_or("name a model or a vocabulary, as a GGUF file")?;
    let text = Text::load(Path::new(&path), None)?;
    let begun = Instant::now();
    let compiler = GrammarCompiler::new(&text.vocabulary, Arc::new(MaskThreads::start()?))?;
    println!("{} tokens; the compiler took {} ms", text.vocabulary.len(), begun.elapsed().as_millis());
    println!("{:<16} {:>10} {:>7} {:>9} {:>9} {:>9}", "grammar", "compile ms", "masks", "mean us", "p99 us", "most us");
    for (name, grammar, answer) in cases() {
        measure(&compiler, &text.tokenizer, name, &grammar, &answer)?;
    }
    Ok(())
}

/// Follows an answer a few times, as requests one after another do.
fn measure(
    compiler: &GrammarCompiler,
    tokenizer: &Tokenizer,
    name: &str,
    grammar: &Grammar,
    answer: &str,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let compiled = compiler.compile(grammar)?;
    let compile = begun.elapsed();
    let tokens = tokenizer.encode_rendered(answer)?;
    let mut times = Vec::new();
    for _ in 0..8 {
        let mut constraint = Constraint::begin(compiled.clone());
        for token in &tokens {
            let NextToken::OneOf(mask) = next(&mut constraint)? else { break };
            if !mask.allows(*token) {
                return Err(format!("{name}: token {token} of the answer is not allowed").into());
            }
            let begun = Instant::now();
            constraint.accept(*token);
            next(&mut constraint)?;
            times.push(begun.elapsed());
        }
    }
    times.sort_unstable();
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let count = u32::try_from(times.len())?.max(1);
    let mean = times.iter().sum::<Duration>() / count;
    let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or_default();
    let most = times.last().copied().unwrap_or_default();
    let (compile, mean, p99, most) = (compile.as_millis(), micros(mean), micros(p99), micros(most));
    println!("{name:<16} {compile:>10} {:>7} {mean:>9.1} {p99:>9.1} {most:>9.1}", times.len());
    Ok(())
}

fn next(constraint: &mut Constraint) -> Result<NextToken, Failure> {
    let threads = Arc::clone(constraint.grammar().threads());
    loop {
        let seen = threads.done();
        match constraint.next_token() {
            Some(next) => return Ok(next?),
            None => threads.wait_beyond(seen, Duration::from_secs(10)),
        }
    }
}

fn person() -> Value {
    json!({
        "type": "object", "required": ["name", "age", "email", "tags", "address"], "additionalProperties": false,
        "properties": {
            "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "email": {"type": "string", "maxLength": 60}, "tags": {"type": "array", "items": {"type": "string"}},
            "address": {"type": "object", "required": ["street", "city"], "additionalProperties": false,
                        "properties": {"street": {"type": "string"}, "city": {"enum": ["Rome", "Oslo", "Lima"]}}},
        },
    })
}

fn cases() -> Vec<(&'static str, Grammar, String)> {
    let answer = json!({"name": "Ada Lovelace, née Byron", "age": 36, "email": "ada@example.org",
        "tags": ["mathematics", "analytical engine", "poetry"], "address": {"street": "12 St James's Square", "city": "Rome"}});
    let tool = Tool { name: "save_person".to_owned(), parameters: person(), strict: true };
    let plan = ToolPlan {
        format: ToolFormat::Hermes,
        tools: vec![tool],
        choice: ToolChoice::Auto,
        parallel: true,
        answer: None,
    };
    let spaced = "{\"name\": \"Ada\", \"age\": 36, \"email\": \"a@b.c\", \"tags\": [], \"address\": {\"street\": \"x\", \"city\": \"Oslo\"}}";
    let call = format!(
        "I will save this person now, and then I tell you about the result.\n<tool_call>\n{{\"name\": \"save_person\", \
         \"arguments\": {spaced}}}\n</tool_call>"
    );
    let mut all = vec![
        ("json_schema", Grammar::JsonSchema(person().to_string()), answer.to_string()),
        ("json_object", Grammar::json_object(), answer.to_string()),
        ("regex", Grammar::Regex("[a-z]+(, [a-z]+){0,20}".to_owned()), "one, two, three, four".to_owned()),
    ];
    if let Ok(grammar) = plan.grammar(&ToolMarkers::default()) {
        all.push(("text and call", grammar, call));
    }
    all
}
