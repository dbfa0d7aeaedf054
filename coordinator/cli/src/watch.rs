//! Prints a view once, or repeatedly until Ctrl-C.

use std::time::Duration;

use model_boss_client::Client;
use model_boss_host::terminal::{self, Code};

use super::args::WatchArgs;
use super::error::CliError;
use super::runtime::{print, small_runtime};

/// The interval between two requests for the view.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Prints the view that `look` makes, once or repeatedly.
pub(super) fn show(
    client: &Client,
    args: WatchArgs,
    look: impl AsyncFn(&Client) -> Result<String, CliError>,
) -> Result<(), CliError> {
    small_runtime()?.block_on(async {
        let clear = args.watch && terminal::out_is_terminal();
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        loop {
            ticks.tick().await;
            let shown = look(client).await?;
            if clear {
                terminal::out().code(Code::HomeAndClear).map_err(CliError::Output)?;
            }
            print(&shown)?;
            if !args.watch {
                return Ok(());
            }
        }
    })
}
