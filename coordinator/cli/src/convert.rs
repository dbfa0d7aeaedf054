//! `model-boss convert`: the worker writes a model's files in another form, beside the existing ones or to a given
//! path.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};
use model_boss_client::Client;

use super::by_worker::{ByWorker, ModelOnDisk};
use super::error::CliError;

/// The forms that can be written.
#[derive(Debug, Subcommand)]
pub(super) enum ConvertCommand {
    /// Write a copy of the layers beside the model, in the order in which they compute. Streaming then reads each layer
    /// in one piece. Takes the model's size on disk.
    Index(IndexArgs),
    /// Write a folder of safetensors as one GGUF file, quantised if wanted.
    Gguf(GgufArgs),
}

/// `convert index MODEL`.
#[derive(Debug, Args)]
pub(super) struct IndexArgs {
    /// The model's name or alias in the folder of manifests, or a path.
    #[arg(value_name = "MODEL|PATH")]
    model: String,
    /// The order of the bytes within each matrix.
    #[arg(long, value_enum, default_value_t)]
    order: RowOrder,
}

/// The worker's `--order`.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum RowOrder {
    /// The order that this machine's CPU computes with, so that no step has to rearrange it.
    #[default]
    Machine,
    /// The model's own order, which GPUs copy and any machine reads.
    Rows,
}

/// `convert gguf MODEL OUT.gguf`.
#[derive(Debug, Args)]
pub(super) struct GgufArgs {
    /// The model's name or alias in the folder of manifests, or a path.
    #[arg(value_name = "MODEL|FOLDER")]
    model: String,
    /// The file to write.
    #[arg(value_name = "OUT.gguf")]
    out: PathBuf,
    /// The type of the stored matrices.
    #[arg(long = "type", value_enum, default_value_t)]
    stored_as: StoredAs,
}

/// The worker's `--type`.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum StoredAs {
    /// 16 bits.
    F16,
    /// 16 bits with the range of 32.
    Bf16,
    /// 8 bits: half the size, nearly the same answers.
    #[default]
    #[value(name = "q8_0")]
    Q8_0,
}

/// Runs the worker, which writes the files; its exit code is passed on.
pub(super) async fn convert(client: &Client, command: &ConvertCommand) -> Result<ExitCode, CliError> {
    let (ConvertCommand::Index(IndexArgs { model, .. }) | ConvertCommand::Gguf(GgufArgs { model, .. })) = command;
    let worker = ByWorker::new()?;
    let found = worker.find(client, model).await?;
    let stage = match command {
        ConvertCommand::Index(_) => "writing the layers",
        ConvertCommand::Gguf(_) => "writing the file",
    };
    worker.run_long(stage, arguments(command, &found))
}

/// The worker's command line.
fn arguments(command: &ConvertCommand, found: &ModelOnDisk) -> Vec<OsString> {
    let (source, said) = (found.source.clone().into(), |value: Option<PossibleValue>| {
        value.map(|value| value.get_name().to_owned()).unwrap_or_default().into()
    });
    match command {
        ConvertCommand::Index(args) => {
            vec!["index".into(), source, "--order".into(), said(args.order.to_possible_value())]
        }
        ConvertCommand::Gguf(args) => {
            let stored_as = said(args.stored_as.to_possible_value());
            vec!["convert".into(), source, args.out.clone().into(), "--type".into(), stored_as]
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::{Cli, Command as Asked};
    use clap::Parser;

    #[test]
    fn rs_5_the_worker_is_told_what_to_write_and_of_which_files() {
        let found = ModelOnDisk { name: "m".to_owned(), source: "/m/x".into(), ..ModelOnDisk::default() };
        for (words, line) in [
            ("index m", "index /m/x --order machine"),
            ("index m --order rows", "index /m/x --order rows"),
            ("gguf m y.gguf", "convert /m/x y.gguf --type q8_0"),
            ("gguf m y.gguf --type bf16", "convert /m/x y.gguf --type bf16"),
        ] {
            let words = ["model-boss", "convert"].into_iter().chain(words.split_whitespace());
            match Cli::try_parse_from(words).unwrap().command {
                Asked::Convert(command) => {
                    let told = arguments(&command, &found).join(OsStr::new(" "));
                    assert_eq!(told, line);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
