//! `model-boss bench`: measures models. `bench MODEL` asks a server as its clients do; `bench residency` runs a worker
//! alone.

mod args;
mod endpoint;
mod figures;
mod picture;
mod prompts;
mod report;
mod residency;
mod run;
mod sample;
mod stats;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use model_boss_client::Client;

use self::args::ModelBenchArgs;
use self::residency::ResidencyArgs;
use super::error::CliError;
use super::runtime::small_runtime;

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct BenchLine {
    #[command(subcommand)]
    pub(super) command: Option<BenchCommand>,
    #[command(flatten)]
    pub(super) model: Option<ModelBenchArgs>,
}

/// The measurements with a name of their own.
#[derive(Debug, Subcommand)]
pub(super) enum BenchCommand {
    /// Decode some tokens with streamed layers. Reports each layer's times to read, to compute and to wait, the share
    /// of the disk's rate, and the overlap. Draws a picture of the last step. Holds no lease.
    Residency(ResidencyArgs),
}

/// Runs a measurement.
pub(super) fn bench(client: &Client, args: BenchLine) -> Result<ExitCode, CliError> {
    let runtime = small_runtime()?;
    match (args.command, args.model) {
        (Some(BenchCommand::Residency(args)), _) => runtime.block_on(residency::residency(client, &args)),
        (None, Some(args)) => runtime.block_on(run::bench(client, &args)),
        // The parser asks for one of the two.
        (None, None) => Ok(ExitCode::FAILURE),
    }
}
