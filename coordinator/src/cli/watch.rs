//! Shows something once, or again and again until Ctrl-C.

use std::io::{self, IsTerminal};
use std::time::Duration;

use super::error::CliError;
use super::{WatchArgs, print, small_runtime};
use crate::client::Client;

/// The time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Moves to the first place of the terminal and clears what is below.
const HOME_AND_CLEAR: &str = "\x1b[H\x1b[J";

/// Prints what `look` gives.
pub(super) fn show(
    client: &Client,
    args: WatchArgs,
    look: impl AsyncFn(&Client) -> Result<String, CliError>,
) -> Result<(), CliError> {
    small_runtime()?.block_on(async {
        let clear = args.watch && io::stdout().is_terminal();
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        loop {
            ticks.tick().await;
            let shown = look(client).await?;
            print(&if clear { format!("{HOME_AND_CLEAR}{shown}") } else { shown })?;
            if !args.watch {
                return Ok(());
            }
        }
    })
}
