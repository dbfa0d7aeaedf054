//! Retries after a lost race for the ledger: a process pauses for a random time and tries again, for as long as its
//! caller allows. Time and randomness are parameters, so that a test can simulate a race.

use std::time::{Duration, Instant};

use model_boss_protocol::Later;

/// The longest pause after the first loss. With eight busy processes about half of the tries then succeed.
const FIRST: Duration = Duration::from_millis(16);

/// Time and randomness.
pub(crate) trait Pacing: Send {
    /// The time since an arbitrary moment.
    fn now(&mut self) -> Duration;
    /// A random number from 0 to 1.
    fn chance(&mut self) -> f64;
    /// Waits for this time.
    fn pause(&mut self, span: Duration);
}

/// The pause after this many losses: a random share of a span that shrinks with each loss. The process that has lost
/// most often pauses shortest, and is the most likely to win.
pub(crate) fn pause_after(losses: u32, chance: f64) -> Duration {
    FIRST.mul_f64(chance.clamp(0.0, 1.0)) / losses.max(1)
}

/// The host's own time and randomness.
#[derive(Debug)]
pub(crate) struct RealPacing(Instant);

impl RealPacing {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }
}

impl Pacing for RealPacing {
    fn now(&mut self) -> Duration {
        self.0.elapsed()
    }

    fn chance(&mut self) -> f64 {
        let mut bytes = [0, 128];
        // Without random numbers the buffer keeps its middle value.
        let _ = getrandom::fill(&mut bytes);
        f64::from(u16::from_le_bytes(bytes)) / f64::from(u16::MAX)
    }

    fn pause(&mut self, span: Duration) {
        let until = Instant::now().later(span);
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lost_more_often_pauses_shorter() {
        assert_eq!(pause_after(1, 1.0), FIRST);
        assert_eq!(pause_after(1, 0.5), FIRST / 2);
        assert_eq!(pause_after(16, 1.0), Duration::from_millis(1));
        assert_eq!(pause_after(0, 2.0), FIRST);
        assert!((1..100).all(|losses| pause_after(losses + 1, 0.9) < pause_after(losses, 0.9)));
    }
}
