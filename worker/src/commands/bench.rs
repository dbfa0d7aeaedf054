//! The speed of a decoder at prompts and at decoding, without HTTP. It measures the same as `llama-bench`, in its words
//! (`pp512`, `tg64`), so that the two can be compared.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use model_boss_engine::batch::StepBudget;
use model_boss_engine::{DecoderError, Logits, SequenceStep, Sequences};
use model_boss_protocol::{DeviceId, SandboxMode, WorkerExit};
use serde::Serialize;

use crate::args::{LayerFlags, Serve};
use crate::backend::LoadDecoder;
use crate::by_hand;
use crate::failure::LoadFailure;
use crate::terminal::print;

/// `bench`'s command line.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// A GGUF file, or a folder with a model
    model: PathBuf,
    /// Where to run; several devices share the layers: cuda:0,cuda:1
    #[arg(long, default_value = "cpu", value_delimiter = ',')]
    device: Vec<DeviceId>,
    /// Tokens of the prompt that is read; 0 measures none
    #[arg(long, default_value_t = 512)]
    prompt: usize,
    /// Tokens that are decoded; 0 measures none
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// Tokens that the sequence holds before either
    #[arg(long, default_value_t = 0)]
    depth: usize,
    /// Measurements of each
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[command(flatten)]
    layers: LayerFlags,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// The measurements: tokens per second of every round.
#[derive(Debug, Default, Serialize)]
struct Speeds {
    /// Seconds from the call to a decoder that is ready.
    load_s: f64,
    prompt: Vec<f64>,
    decode: Vec<f64>,
}

/// Loads the model, measures, prints.
pub(crate) fn run(asked: &BenchArgs, load: LoadDecoder) -> Result<(), LoadFailure> {
    let serve = Serve {
        model: None,
        port: 0,
        device: asked.device.clone(),
        // The measured length, and no more: keys and values for it have to find room beside streamed layers.
        context_length: Some((asked.depth + asked.prompt.max(asked.tokens).max(1)) as u64),
        max_concurrent: Some(1),
        sandbox: SandboxMode::Off,
        layers: asked.layers.clone(),
    };
    let spec = by_hand::spec(&serve, &asked.model).map_err(|error| LoadFailure::new(WorkerExit::BadSpec, &error))?;
    let begun = Instant::now();
    let mut decoder = Sequences::over(load(&spec, &mut |_| ())?);
    let load_s = begun.elapsed().as_secs_f64();
    let speeds = Speeds { load_s, ..measure(asked, &mut decoder).map_err(LoadFailure::of_step)? };
    if asked.json {
        // Lists of numbers always have a spelling in JSON.
        print(serde_json::to_string(&speeds).unwrap_or_default());
    } else {
        print(format_args!("loaded in {load_s:.2} s"));
        let at = if asked.depth > 0 { format!(" behind {} tokens", asked.depth) } else { String::new() };
        print_row(&format!("pp{}{at}", asked.prompt), &speeds.prompt);
        print_row(&format!("tg{}{at}", asked.tokens), &speeds.decode);
    }
    Ok(())
}

fn print_row(name: &str, speeds: &[f64]) {
    let mut sorted = speeds.to_vec();
    sorted.sort_by(f64::total_cmp);
    if let (Some(least), Some(most)) = (sorted.first(), sorted.last()) {
        let median = sorted[sorted.len() / 2];
        let n = sorted.len();
        print(format_args!("{name:<24} {median:>9.1} tokens/s   ({least:.1} to {most:.1}, n = {n})"));
    }
}

fn measure(asked: &BenchArgs, decoder: &mut Sequences) -> Result<Speeds, DecoderError> {
    let vocabulary = u32::try_from(decoder.info().vocab_size).unwrap_or(u32::MAX).max(1);
    // Any tokens will do, as long as they are many different ones.
    let token = |i: usize| (i as u32).wrapping_mul(7_919).wrapping_add(13) % vocabulary;
    let capacity = asked.depth + asked.prompt.max(asked.tokens).max(1);
    let kv = decoder.open(capacity)?;
    let read = |decoder: &mut Sequences, from: usize, to: usize, piece: usize| -> Result<Duration, DecoderError> {
        let tokens: Vec<u32> = (from..to).map(token).collect();
        let begun = Instant::now();
        for piece in tokens.chunks(piece) {
            decoder.forward(&[SequenceStep { kv, tokens: piece, logits: Logits::Last }])?;
        }
        Ok(begun.elapsed())
    };
    let piece = StepBudget::default().prefill_alone;
    let mut speeds = Speeds::default();
    read(decoder, 0, asked.depth, piece)?;
    for round in 0..=asked.rounds {
        for (count, piece, speeds) in [(asked.prompt, piece, &mut speeds.prompt), (asked.tokens, 1, &mut speeds.decode)]
        {
            if count == 0 {
                continue;
            }
            // The first round warms caches up and is left out; a few tokens are enough for that.
            let count = if round == 0 && piece == 1 { count.min(4) } else { count };
            let took = read(decoder, asked.depth, asked.depth + count, piece)?;
            decoder.truncate(kv, asked.depth);
            if round > 0 {
                speeds.push(count as f64 / took.as_secs_f64());
            }
        }
    }
    decoder.close(kv);
    Ok(speeds)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use model_boss_engine::fake::{FakeDecoder, Script};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArgs,
    }

    #[test]
    fn every_round_is_measured_and_the_sequence_is_closed() {
        let asked =
            Line::parse_from(["x", "m", "--prompt", "20", "--tokens", "5", "--depth", "7", "--rounds", "2"]).bench;
        let mut decoder = Sequences::over(Box::new(FakeDecoder::new(Script::Hash(8), 64)));
        let speeds = measure(&asked, &mut decoder).unwrap();
        assert_eq!((speeds.prompt.len(), speeds.decode.len()), (2, 2));
        assert!(speeds.prompt.iter().chain(&speeds.decode).all(|speed| *speed > 0.0));
        let none = Line::parse_from(["x", "m", "--prompt", "0", "--tokens", "0"]).bench;
        let speeds = measure(&none, &mut decoder).unwrap();
        assert!(speeds.prompt.is_empty() && speeds.decode.is_empty());
    }
}
