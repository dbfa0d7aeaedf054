//! The wake-up of the one task that looks at every change: event streams of operators.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Says that something may have changed, to the one task that asked to hear it. Costs a flag while nobody asks.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    heard: AtomicBool,
    beat: Notify,
}

impl Pulse {
    /// Whether somebody wants to hear it.
    pub(crate) fn listen(&self, heard: bool) {
        self.heard.store(heard, Ordering::Release);
    }

    /// Waits until something may have changed since the last time.
    pub(crate) async fn beat(&self) {
        self.beat.notified().await;
    }

    pub(crate) fn changed(&self) {
        if self.heard.load(Ordering::Acquire) {
            self.beat.notify_one();
        }
    }
}
