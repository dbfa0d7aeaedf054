//! The tokio runtime of commands that call a coordinator, and their output.

use std::io::Write;

use model_boss_host::terminal;
use tokio::runtime::{Builder, Runtime};

use crate::CliError;

pub(super) fn print(text: &str) -> Result<(), CliError> {
    terminal::out().write_all(text.as_bytes()).map_err(CliError::Output)
}

/// A runtime on the current thread, enough for one request at a time.
pub(super) fn small_runtime() -> Result<Runtime, CliError> {
    Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)
}
