//! Arguments that several commands share.

use clap::Args;

/// Arguments of every command that reads.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct ReadArgs {
    /// The API's own JSON, for programs.
    #[arg(long)]
    pub(super) json: bool,
}

/// Arguments of reading commands whose output is worth following.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    pub(super) read: ReadArgs,
    /// Show it again every second until Ctrl-C.
    #[arg(short, long)]
    pub watch: bool,
}
