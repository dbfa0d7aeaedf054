//! The arguments of these measurements, and our own server by them.

use std::path::PathBuf;

use model_boss_protocol::InstructionSet;
use model_boss_tests::{Boss, Sandbox, binary};

/// The arguments of a measurement.
pub(super) struct Options {
    pub(super) rounds: usize,
    pub(super) threads: usize,
    pub(super) tokens: usize,
    /// The file of the model in `batch`, `prefix` and `schema`; random weights without it.
    pub(super) model: Option<PathBuf>,
    /// The file of the draft model in `speculation`.
    pub(super) draft: Option<PathBuf>,
    pub(super) json: Option<PathBuf>,
    /// The workers' instructions. llama.cpp has those that it was built with.
    pub(super) cpu_features: Option<InstructionSet>,
    /// Whether drafts are looked up, as the manifest says it.
    pub(super) speculation: String,
}

impl Options {
    /// Reads the arguments behind the measurement's name.
    pub(super) fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut options = Self {
            rounds: 5,
            threads,
            tokens: 64,
            model: None,
            draft: None,
            json: None,
            cpu_features: None,
            speculation: "lookup".to_owned(),
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            let number = |text: String| text.parse::<usize>().map_err(|_| format!("'{text}' is no whole number"));
            match word.as_str() {
                "--rounds" => options.rounds = number(value()?)?.max(1),
                "--threads" => options.threads = number(value()?)?.max(1),
                "--tokens" => options.tokens = number(value()?)?.max(2),
                "--model" => options.model = Some(value()?.into()),
                "--draft" => options.draft = Some(value()?.into()),
                "--json" => options.json = Some(value()?.into()),
                "--speculation" => options.speculation = value()?,
                "--cpu-features" => {
                    let set = value()?.parse().and_then(InstructionSet::checked);
                    options.cpu_features = Some(set.map_err(|error| error.to_string())?);
                }
                _ => {
                    return Err(format!(
                        "'{word}' is none of --rounds N, --threads N, --tokens N, --model FILE.gguf, --draft FILE.gguf, \
                         --json FILE, \
                         --cpu-features SET, --speculation off|lookup"
                    ));
                }
            }
        }
        Ok(options)
    }
}

pub(super) async fn ours(sandbox: &Sandbox, options: &Options) -> Boss {
    let mut launch = sandbox.launch(&binary("model-boss-worker"));
    launch.command.env("RAYON_NUM_THREADS", options.threads.to_string());
    launch.start().await
}
