//! Measures masks: the time between a token and the set of tokens that may follow it, over a real vocabulary.
//!
//! `cargo run --release --package model-boss-engine --example masks -- VOCABULARY.gguf [CASE] [--at-once]`
//!
//! The first answer to a form begins when its rehearsal is over, as it does behind a prompt; with `--at-once` there is
//! no rehearsal.

mod cases;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model_boss_engine::constraint::{Constraint, GrammarCompiler, MaskThreads, NextToken};
use model_boss_engine::text::{Text, Tokenizer};

use self::cases::{Case, cases};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let (options, words): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|word| word.starts_with("--"));
    let path = words.first().ok_or("name a model or a vocabulary, as a GGUF file")?;
    let text = Text::load(Path::new(path), None)?;
    let begun = Instant::now();
    let compiler = GrammarCompiler::new(&text.vocabulary, Arc::new(MaskThreads::start()?))?;
    let compiler = if options.iter().any(|option| option == "--at-once") { compiler.unrehearsed() } else { compiler };
    println!("{} tokens; the compiler took {} ms", text.vocabulary.len(), begun.elapsed().as_millis());
    let columns = ["compile ms", "rehearsed", "first mean", "first most", "mean us", "p99 us", "most us"];
    println!("{:<20} {}", "grammar", columns.map(|name| format!("{name:>10}")).join(" "));
    let wanted = words.get(1);
    for case in cases()?.iter().filter(|case| wanted.is_none_or(|wanted| case.name == wanted)) {
        measure(&compiler, &text.tokenizer, case)?;
    }
    Ok(())
}

/// Follows an answer a few times, as requests one after another do. The first one to a grammar has columns of its own.
/// Compiling and rehearsing are in milliseconds.
fn measure(
    compiler: &GrammarCompiler,
    tokenizer: &Tokenizer,
    Case { name, grammar, answer }: &Case,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let compiled = compiler.compile(grammar)?;
    let compile = begun.elapsed();
    compiler.threads().wait_for_spare(Duration::from_secs(10));
    let rehearsed = begun.elapsed().saturating_sub(compile);
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
    println!("{name:<20} {:>10.1} {:>10.1} {}", micros(compile) / 1e3, micros(rehearsed) / 1e3, figures.join(" "));
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
