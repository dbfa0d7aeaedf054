//! The wake-up of the one task that follows every change, for the event streams of operators.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Signals to the one listening task that the state may have changed. A signal costs only a flag while no task listens.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    heard: AtomicBool,
    beat: Notify,
}

impl Pulse {
    /// Starts or stops listening.
    pub(crate) fn listen(&self, heard: bool) {
        self.heard.store(heard, Ordering::Release);
    }

    /// Waits until the state may have changed since the last call.
    pub(crate) async fn beat(&self) {
        self.beat.notified().await;
    }

    pub(crate) fn changed(&self) {
        if self.heard.load(Ordering::Acquire) {
            self.beat.notify_one();
        }
    }
}
