//! The command line. A worker is normally started by the coordinator; by hand it takes a model to debug.

use std::num::NonZero;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser, Subcommand};
use model_boss_protocol::{InstructionSet, WorkerExit};

use crate::args::{Convert, Index, Serve, Synth};
use crate::commands::bench::BenchArgs;
use crate::commands::disk::Disk;
use crate::commands::inspect::Inspect;
use crate::commands::prompt::{Detokenize, Render, Tokenize};
use crate::commands::residency::ResidencyReportArgs;
use crate::commands::text_cost::TextCost;
use crate::failure::LoadFailure;

/// Serves one model over HTTP on this machine, with OpenAI's API.
#[derive(Debug, Parser)]
#[command(name = "model-boss-worker", version, arg_required_else_help = true)]
pub(crate) struct CommandLine {
    /// Instructions of the processor that products use at most: portable, neon, neon-dotprod, neon-i8mm, avx2,
    /// avx-vnni, avx512, avx512-vnni, amx. For comparisons and bug reports [default: the fastest that the machine has]
    #[arg(long, global = true, value_name = "SET")]
    pub(crate) cpu_features: Option<InstructionSet>,
    /// Threads that compute on the CPU [default: one for each core that this process may use, fewer under a quota]
    #[arg(long, global = true, value_name = "N")]
    pub(crate) threads: Option<NonZero<u32>>,
    #[command(subcommand)]
    pub(crate) command: WorkerCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkerCommand {
    /// Serve a model. Without MODEL the start line is awaited on standard input, as the coordinator sends it
    Serve(Serve),
    /// Show what a model's files say of themselves, without loading it
    Inspect(Inspect),
    /// Print as JSON what this program is built for and what it finds on this machine: instructions of the processor,
    /// sandbox, threads, CUDA. Loads nothing, and opens no device
    About,
    /// Write a folder of safetensors as one GGUF file, which other programs read too
    Convert(Convert),
    /// Write a model's layers beside it as they are computed with, so that streaming them has nothing to do but read
    Index(Index),
    /// Write a GGUF file of random weights, for measurements
    Synth(Synth),
    /// Render conversations from standard input with a chat template, as requests are rendered
    Render(Render),
    /// Turn texts from standard input into the ids of a model's tokens
    Tokenize(Tokenize),
    /// Turn ids of tokens from standard input into text
    Detokenize(Detokenize),
    /// Write the manual page of each command into a folder; packages are made with it
    #[command(hide = true)]
    Man {
        /// The folder, which must exist
        folder: PathBuf,
    },
    /// Measure how fast a model reads prompts and decodes, without HTTP around it
    Bench(BenchArgs),
    /// Decode with streamed layers, and report where the time went, layer by layer
    Residency(ResidencyReportArgs),
    /// The process that turns requests into prompts; its worker starts it
    #[command(name = crate::text::LAUNCHER_COMMAND, hide = true)]
    TextHost,
    /// The process that starts programs which speak; its worker starts it
    #[command(name = crate::speaking::HOST_COMMAND, hide = true)]
    SpeechHost,
    /// The keeper of one program that speaks
    #[command(name = crate::speaking::KEEPER_COMMAND, hide = true)]
    SpeechKeeper,
    /// Measure what it costs to turn a conversation into tokens in the text processes, beside the same work without
    /// them
    Text(TextCost),
    /// Measure what the disk under a file gives, by several readers at a time: the ceiling of streaming
    Disk(Disk),
}

/// Writes the manual pages.
pub(crate) fn write_manual(folder: &Path) -> Result<(), LoadFailure> {
    clap_mangen::generate_to(CommandLine::command(), folder).map_err(|error| {
        LoadFailure::message(WorkerExit::BadSpec, format!("{} cannot be written to: {error}", folder.display()))
    })
}
