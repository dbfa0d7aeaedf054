//! The end of a coordinator: the signals that request it, and the time that running requests still have.

use std::process::ExitCode;
use std::time::Duration;

use model_boss_host::hangup::{self, Hangup};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::error::ServeError;
use crate::scheduling::Scheduling;

/// The longest time in which requests learn of their end, after `drain_grace` has passed and the workers were killed.
const CUT_LIMIT: Duration = Duration::from_secs(1);

/// A stream of SIGINT, SIGTERM and SIGHUP.
pub(super) struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Hangup>,
}

impl EndSignals {
    /// Starts to listen for the signals.
    pub(super) fn new() -> Result<Self, ServeError> {
        let on = |kind| signal(kind).map_err(|error| ServeError::System("signal handlers", error));
        let hangup = hangup::listen().map_err(|error| ServeError::System("signal handlers", error))?;
        Ok(Self { interrupt: on(SignalKind::interrupt())?, terminate: on(SignalKind::terminate())?, hangup })
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = hangup::next(&mut self.hangup) => {}
        }
    }
}

/// Lets running requests end within their grace; after it they end with an error. A second signal ends the process at
/// once. Workers die with it, by their lifeline and by the death signal of the thread that started them.
pub(super) async fn drain(
    scheduling: &Scheduling,
    drained: &CancellationToken,
    signals: &mut EndSignals,
    grace: Duration,
) -> ExitCode {
    scheduling.drain();
    tokio::select! {
        biased;
        () = signals.next() => return at_once(),
        () = drained.cancelled() => return ExitCode::SUCCESS,
        () = tokio::time::sleep(grace) => {}
    }
    tracing::warn!("requests did not end in drain_grace; ending them");
    scheduling.cut();
    tokio::select! {
        biased;
        () = signals.next() => at_once(),
        () = drained.cancelled() => ExitCode::SUCCESS,
        () = tokio::time::sleep(CUT_LIMIT) => ExitCode::SUCCESS,
    }
}

fn at_once() -> ExitCode {
    tracing::warn!("asked again: ending at once");
    ExitCode::from(130)
}
