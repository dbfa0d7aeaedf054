//! `model-boss bench residency`: measures one model on this machine, with the worker that will run it. The command uses
//! no coordinator and no lease, so the result depends on the load of the machine.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use model_boss_client::Client;
use model_boss_protocol::{ByteCount, DeviceId, ResidencyMode};

use super::super::by_worker::{ByWorker, ModelOnDisk};
use super::super::error::CliError;

/// `bench residency MODEL`.
#[derive(Debug, Args)]
pub(crate) struct ResidencyArgs {
    /// The model's name or alias in the folder of manifests, or a path.
    #[arg(value_name = "MODEL|PATH")]
    model: String,
    /// The device, in place of the manifest's.
    #[arg(long)]
    device: Option<DeviceId>,
    /// The memory that the model may use in all, e.g. 2GiB [default: its manifest's vram, else what is free].
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteCount>,
    /// The residency: auto, resident or stream [default: its manifest's].
    #[arg(long)]
    residency: Option<ResidencyMode>,
    /// Blocks of layers fetched ahead of the one in use.
    #[arg(long, value_name = "BLOCKS", value_parser = clap::value_parser!(u32).range(1..))]
    window: Option<u32>,
    /// The number of layers in a block.
    #[arg(long, value_name = "LAYERS", value_parser = clap::value_parser!(u32).range(1..))]
    block: Option<u32>,
    /// The number of sequences that decode together.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    streams: u32,
    /// The number of tokens that each sequence decodes.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// The file for the picture of the last step [default: MODEL-residency.svg, here].
    #[arg(long, value_name = "FILE.svg")]
    timeline: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the worker's report; its exit code is passed on.
pub(crate) async fn residency(client: &Client, args: &ResidencyArgs) -> Result<ExitCode, CliError> {
    let worker = ByWorker::new()?;
    let found = worker.find(client, &args.model).await?;
    let picture = args.timeline.clone().unwrap_or_else(|| picture_of(&found.name));
    let before = written(&picture);
    let code = worker.run(arguments(args, &found, &picture))?;
    if code == ExitCode::SUCCESS && written(&picture) != before {
        // The line goes to standard error, since a program may read the report on standard output.
        model_boss_host::terminal::say(&format!("timeline of the last step: {}", picture.display()));
    }
    Ok(code)
}

/// The worker's command line: options given here override the manifest.
fn arguments(args: &ResidencyArgs, found: &ModelOnDisk, picture: &Path) -> Vec<String> {
    let manifest = &found.manifest;
    let device = args.device.clone().or(Some(manifest.place())).filter(|device| *device != DeviceId::Auto);
    let given = [
        ("--device", device.map(|device| device.to_string())),
        ("--memory", args.memory.or(manifest.stated_size()).map(|bytes| bytes.0.to_string())),
        ("--residency", args.residency.or(manifest.residency).map(|mode| mode.to_string())),
        ("--window", args.window.or(manifest.window).map(|blocks| blocks.to_string())),
        ("--block", args.block.or(manifest.block).map(|layers| layers.to_string())),
        ("--kv-cache-type", manifest.kv_cache_type.map(|kind| kind.to_string())),
        ("--streams", Some(args.streams.to_string())),
        ("--tokens", Some(args.tokens.to_string())),
        ("--timeline", Some(picture.display().to_string())),
    ];
    let mut line = vec!["residency".to_owned(), found.source.display().to_string()];
    for (flag, value) in given {
        line.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value]));
    }
    line.extend(args.json.then(|| "--json".to_owned()));
    line
}

/// The picture's file name: characters that files cannot have are replaced.
fn picture_of(model: &str) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    format!("{}-residency.svg", model.chars().map(plain).collect::<String>()).into()
}

fn written(file: &Path) -> Option<std::time::SystemTime> {
    std::fs::metadata(file).and_then(|about| about.modified()).ok()
}

#[cfg(test)]
mod tests {
    use super::super::{BenchCommand, BenchLine};
    use super::*;
    use crate::{Cli, Command as Asked};
    use clap::Parser;
    use model_boss_protocol::{KvCacheType, Manifest};

    fn asked(words: &str) -> ResidencyArgs {
        let words = ["model-boss", "bench", "residency"].into_iter().chain(words.split_whitespace());
        match Cli::try_parse_from(words).unwrap().command {
            Asked::Bench(BenchLine { command: Some(BenchCommand::Residency(args)), .. }) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn rs_9_the_worker_is_told_what_was_said_and_else_what_the_manifest_says() {
        let manifest = Manifest {
            residency: Some(ResidencyMode::Stream),
            window: Some(3),
            vram: Some(ByteCount::gib(2)),
            kv_cache_type: Some(KvCacheType::Q8_0),
            ..Manifest::default()
        };
        let found = ModelOnDisk { name: "team/m:1".to_owned(), source: "/m/x.gguf".into(), manifest };
        let line = |words: &str| arguments(&asked(words), &found, Path::new("x.svg")).join(" ");
        let memory = 2_u64 << 30;
        let said = format!(
            "--memory {memory} --residency stream --window 3 --kv-cache-type q8_0 --streams 1 --tokens 8 \
             --timeline x.svg"
        );
        assert_eq!(line("m"), format!("residency /m/x.gguf {said}"));
        assert_eq!(
            line("m --device cuda:1 --memory 1MiB --residency auto --window 1 --block 2 --streams 8 --tokens 4 --json"),
            "residency /m/x.gguf --device cuda:1 --memory 1048576 --residency auto --window 1 --block 2 \
             --kv-cache-type q8_0 --streams 8 --tokens 4 --timeline x.svg --json"
        );
        assert_eq!(picture_of(&found.name), Path::new("team-m-1-residency.svg"));
    }
}
