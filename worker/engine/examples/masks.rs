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
    let columns = ["compile ms", "first mean", "first most", "mean us", "p99 us", "most us"];
    println!("{:<16} {}", "grammar", columns.map(|name| format!("{name:>10}")).join(" "));
    for (name, grammar, answer) in cases() {
        measure(&compiler, &text.tokenizer, name, &grammar, &answer)?;
    }
    Ok(())
}

/// Follows an answer a few times, as requests one after another do. The first one to a grammar has columns of its own.
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
    let (mut first, mut times) = (Vec::new(), Vec::new());
    for round in 0..8 {
        let mut constraint = Constraint::begin(compiled.clone());
        let times = if round == 0 { &mut first } else { &mut times };
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
    let mean = |times: &[Duration]| micros(times.iter().sum::<Duration>()) / times.len().max(1) as f64;
    let most = |times: &[Duration]| micros(times.iter().max().copied().unwrap_or_default());
    let p99 = micros(times.get(times.len() * 99 / 100).copied().unwrap_or_default());
    let figures = [mean(&first), most(&first), mean(&times), p99, most(&times)].map(|time| format!("{time:>10.1}"));
    println!("{name:<16} {:>10} {}", compile.as_millis(), figures.join(" "));
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

fn coded() -> Value {
    json!({
        "type": "object", "required": ["code", "slug", "note"], "additionalProperties": false,
        "properties": {
            "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
            "slug": {"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"},
            "note": {"type": "string", "pattern": "^[A-Z][a-z ]{3,40}$"},
        },
    })
}

fn counted() -> Value {
    json!({
        "type": "object", "required": ["title", "text", "words"], "additionalProperties": false,
        "properties": {
            "title": {"type": "string", "minLength": 4, "maxLength": 24},
            "text": {"type": "string", "pattern": "^[A-Za-z ,.]{10,60}$"},
            "words": {"type": "string", "pattern": "^(\\w{1,12} ){1,8}\\w{1,12}$"},
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
        (
            "schema, patterns",
            Grammar::JsonSchema(coded().to_string()),
            json!({"code": "AB-1234", "slug": "a-long-slug-of-words", "note": "Three of them"}).to_string(),
        ),
        (
            "schema, counts",
            Grammar::JsonSchema(counted().to_string()),
            json!({"title": "The analytical engine", "text": "The engine weaves patterns, as the loom weaves leaves.",
                   "words": "notes by the translator upon the memoir"})
            .to_string(),
        ),
        ("regex", Grammar::Regex("[a-z]+(, [a-z]+){0,20}".to_owned()), "one, two, three, four".to_owned()),
    ];
    if let Ok(grammar) = plan.grammar(&ToolMarkers::default()) {
        all.push(("text and call", grammar, call));
    }
    all
}
