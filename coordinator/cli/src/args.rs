//! Arguments that more than one command has.

use clap::Args;

/// What every command that reads takes.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct ReadArgs {
    /// The API's own JSON, for programs.
    #[arg(long)]
    pub(super) json: bool,
}

/// What reads take that are worth following.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    pub(super) read: ReadArgs,
    /// Show it again every second until Ctrl-C.
    #[arg(short, long)]
    pub watch: bool,
}
