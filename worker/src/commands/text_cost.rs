//! The cost of running templates and tokenizers in processes of their own: the same conversation becomes tokens
//! there and here, by turns.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use model_boss_engine::text::{Conversation, Text};
use model_boss_protocol::WorkerExit;
use serde::Serialize;

use crate::failure::LoadFailure;
use crate::terminal::print;
use crate::text::{self, ChatQuestion, TextFailure, TextLoad, TextPart, TextSide, TextSource};

/// `text`'s command line.
#[derive(Debug, clap::Args)]
pub(crate) struct TextCost {
    /// A GGUF file, or a folder with a model
    model: PathBuf,
    /// Bytes of the conversation's last message
    #[arg(long, default_value_t = 1_024)]
    bytes: usize,
    /// Measurements of each
    #[arg(long, default_value_t = 2_000)]
    rounds: usize,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Microseconds.
#[derive(Debug, Serialize)]
struct Costs {
    prompt_tokens: usize,
    here: Spread,
    in_processes: Spread,
    /// The difference of the medians.
    difference_us: f64,
}

#[derive(Debug, Serialize)]
struct Spread {
    median_us: f64,
    p99_us: f64,
}

/// Loads the text side here and there, measures, prints.
pub(crate) fn run(asked: &TextCost) -> Result<(), LoadFailure> {
    let bad_model = |error: &(dyn std::error::Error + 'static)| LoadFailure::new(WorkerExit::BadModel, error);
    let internal = |error: &(dyn std::error::Error + 'static)| LoadFailure::new(WorkerExit::DeviceLost, error);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| internal(&error))?;
    let source = std::path::absolute(&asked.model).map_err(|error| internal(&error))?;
    let here = Text::load(&source, None).map_err(|error| bad_model(&error))?;
    let (sender, loading) = std::sync::mpsc::channel();
    let loaded = move |loaded| drop(sender.send(loaded));
    let load = TextLoad::by_hand(TextSource::Model { path: source, part: TextPart::Whole, template: None });
    text::start_launcher(&load)
        .and_then(|start| text::start(start, runtime.handle().clone(), load, loaded, drop))
        .map_err(|error| internal(&error))?;
    let there = loading.recv().map_err(|error| internal(&error))??;
    let costs = runtime.block_on(async {
        // As a worker has it: on a thread of the runtime.
        let (bytes, rounds) = (asked.bytes, asked.rounds);
        tokio::spawn(async move { measure(&here, &there, bytes, rounds).await }).await
    });
    let costs = costs.map_err(|error| internal(&error))?.map_err(|error| bad_model(&error))?;
    if asked.json {
        // Numbers always have a spelling in JSON.
        print(serde_json::to_string(&costs).unwrap_or_default());
    } else {
        let row = |name: &str, spread: &Spread| {
            print(format_args!("{name:<24} median {:>8.1} µs   p99 {:>8.1} µs", spread.median_us, spread.p99_us));
        };
        print(format_args!("{} tokens, n = {}", costs.prompt_tokens, asked.rounds));
        row("in this process", &costs.here);
        row("in the text processes", &costs.in_processes);
        print(format_args!("{:<24}        {:>8.1} µs", "difference of medians", costs.difference_us));
    }
    Ok(())
}

async fn measure(here: &Text, there: &TextSide, bytes: usize, rounds: usize) -> Result<Costs, TextFailure> {
    let words = "The quick brown fox jumps over the lazy dog. ";
    let content: String = words.chars().cycle().take(bytes).collect();
    let refused = |error: &dyn std::error::Error| TextFailure::Refused(error.to_string());
    let messages = serde_json::from_value(serde_json::json!([
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": content},
    ]));
    let conversation = Conversation { messages: messages.map_err(|error| refused(&error))?, ..Conversation::default() };
    let (mut inside, mut outside, mut prompt_tokens) = (Vec::new(), Vec::new(), 0);
    // The first rounds warm caches up.
    for round in 0..rounds + 20 {
        let begun = Instant::now();
        let prompt = here.prompt(&conversation).map_err(|error| refused(&error))?;
        let tokens = here.tokens(&prompt).map_err(|error| refused(&error))?;
        let took_here = begun.elapsed();
        let begun = Instant::now();
        let question = ChatQuestion::new(conversation.clone(), usize::MAX, None)?;
        let same = there.chat(question).await?.tokens;
        let took_there = begun.elapsed();
        if same != tokens {
            return Err(TextFailure::Refused("the text processes gave other tokens".to_owned()));
        }
        prompt_tokens = tokens.len();
        if round >= 20 {
            inside.push(took_here);
            outside.push(took_there);
        }
    }
    let (here, in_processes) = (spread(inside), spread(outside));
    Ok(Costs { prompt_tokens, difference_us: in_processes.median_us - here.median_us, here, in_processes })
}

fn spread(mut times: Vec<Duration>) -> Spread {
    times.sort_unstable();
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).map_or(0.0, |time| time.as_secs_f64() * 1e6);
    Spread { median_us: at(0.5), p99_us: at(0.99) }
}
