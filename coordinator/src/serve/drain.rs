//! The end of a coordinator: the signals that ask for it, and what running requests get until then.

use std::process::ExitCode;
use std::time::Duration;

use model_boss_host::hangup::{self, Hangup};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::error::ServeError;
use crate::scheduling::Scheduling;

/// After drain_grace the workers are killed, and their requests get this long to hear of it.
const CUT_LIMIT: Duration = Duration::from_secs(1);

/// SIGINT, SIGTERM and SIGHUP, one after another.
pub(super) struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Hangup>,
}

impl EndSignals {
    /// Listens from now on.
    pub(super) fn new() -> Result<Self, ServeError> {
        let on = |kind| signal(kind).map_err(|error| ServeError::System("signal handlers", error));
        let hangup = hangup::listen().map_err(|error| ServeError::System("signal handlers", error))?;
        Ok(Self { interrupt: on(SignalKind::interrupt())?, terminate: on(SignalKind::terminate())?, hangup })
    }

    /// Waits for the next of them.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = hangup::next(&mut self.hangup) => {}
        }
    }
}

/// What runs may end within its grace; after that it is ended with an error. Asked again, all ends at once: workers die
/// with us, by their lifeline and by the death signal of the thread that started them.
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
