//! `model-boss logs`: the output of a model's workers, as the coordinator kept it.

use std::io::Write;

use clap::Args;
use model_boss_client::{Client, in_path};
use model_boss_host::terminal;

use super::error::CliError;

/// `logs MODEL`.
#[derive(Debug, Args)]
pub(super) struct LogsArgs {
    /// The model's name or alias.
    model: String,
    /// The number of last lines.
    #[arg(short = 'n', long, default_value_t = 200)]
    lines: usize,
    /// Follow the log until Ctrl-C.
    #[arg(short, long)]
    follow: bool,
}

/// Prints the lines as they arrive.
pub(super) async fn logs(client: &Client, args: &LogsArgs) -> Result<(), CliError> {
    let follow = if args.follow { "&follow=true" } else { "" };
    let path = format!("/api/v1/logs/{}?lines={}{follow}", in_path(&args.model), args.lines);
    let mut text = client.read(&path).await?;
    let mut out = terminal::out();
    while let Some(piece) = text.next().await? {
        out.write_all(&piece).map_err(CliError::Output)?;
    }
    Ok(())
}
