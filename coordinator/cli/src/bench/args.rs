//! The arguments of `bench MODEL`.

use std::path::PathBuf;

use clap::Args;

/// The most streams at once.
const MOST_STREAMS: u32 = 256;

/// `bench MODEL`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ModelBenchArgs {
    /// The model's name or alias.
    pub(crate) model: String,
    /// Numbers of streams that are measured one after the other.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32],
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_STREAMS)))]
    pub(crate) streams: Vec<u32>,
    /// The length of each prompt, in tokens, about.
    #[arg(long, value_name = "TOKENS", default_value_t = 256, value_parser = clap::value_parser!(u32).range(8..=1_000_000))]
    pub(crate) prompt_tokens: u32,
    /// The length of each answer, in tokens, where the server can be told to go on to that length.
    #[arg(long, value_name = "TOKENS", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    pub(crate) tokens: u32,
    /// Rounds of each number of streams. Servers take turns in each round.
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,
    /// Let prompts be answered from the prefix cache: all have one text. Else no two begin alike.
    #[arg(long)]
    pub(crate) cached: bool,
    /// Decides the prompts.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Another server of OpenAI's API to compare with, such as http://127.0.0.1:8080/v1.
    #[arg(long, value_name = "URL")]
    pub(crate) against: Option<String>,
    /// The model's name there [default: the same, or the only one it lists].
    #[arg(long, value_name = "NAME", requires = "against")]
    pub(crate) against_model: Option<String>,
    /// The environment variable with that server's key.
    #[arg(long, value_name = "VARIABLE", requires = "against")]
    pub(crate) against_key: Option<String>,
    /// The longest that one answer may take, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
    /// Draw the figures into this file.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) svg: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
