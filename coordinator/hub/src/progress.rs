//! The progress of a pull: its stage, its bytes, and their rate.

use std::time::{Duration, Instant};

use tokio::sync::watch;

/// The time over which the rate is averaged.
const RATE_OVER: Duration = Duration::from_secs(5);
/// The least time between two reports of bytes.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// The step of a pull.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PullStage {
    /// The hub is asked for the files.
    #[default]
    Listing,
    /// Another process downloads the same file.
    Waiting,
    /// Bytes are downloaded.
    Downloading,
    /// The checksum of a file is computed.
    Verifying,
    /// The files are made visible.
    Linking,
}

impl PullStage {
    /// The word in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Listing => "listing",
            Self::Waiting => "waiting",
            Self::Downloading => "downloading",
            Self::Verifying => "verifying",
            Self::Linking => "linking",
        }
    }
}

/// The progress of a pull.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PullProgress {
    /// The step.
    pub stage: PullStage,
    /// The path of the current file in its repository.
    pub file: String,
    /// The current file's checksum, without the name of its kind.
    pub digest: String,
    /// The bytes of the current file.
    pub file_total: u64,
    /// The bytes of the current file that are there.
    pub file_completed: u64,
    /// The bytes of all files.
    pub total: u64,
    /// The bytes of all files that are there.
    pub completed: u64,
    /// The bytes in each second, as an average over a short time.
    pub rate: f64,
    /// The last trouble with the connection, human-readable, until bytes come again.
    pub trouble: Option<String>,
}

impl PullProgress {
    /// The share of all bytes that are there, in per cent.
    pub fn percent(&self) -> u64 {
        let share = u128::from(self.completed).saturating_mul(100).checked_div(u128::from(self.total));
        u64::try_from(share.unwrap_or(0)).unwrap_or(100).min(100)
    }
}

/// Counts bytes, and reports the progress to its readers.
pub(crate) struct ByteMeter {
    reports: watch::Sender<PullProgress>,
    now: PullProgress,
    reported: Instant,
    /// The end of the last interval of the rate, and the bytes since then.
    since: Instant,
    bytes: u64,
}

impl ByteMeter {
    pub(crate) fn new() -> (Self, watch::Receiver<PullProgress>) {
        let (reports, reader) = watch::channel(PullProgress::default());
        let now = Instant::now();
        (Self { reports, now: PullProgress::default(), reported: now, since: now, bytes: 0 }, reader)
    }

    /// Changes the progress and reports it at once.
    pub(crate) fn set(&mut self, change: impl FnOnce(&mut PullProgress)) {
        change(&mut self.now);
        self.report();
    }

    /// Counts bytes of the current file that came.
    pub(crate) fn came(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.now.file_completed = self.now.file_completed.saturating_add(bytes);
        self.now.completed = self.now.completed.saturating_add(bytes);
        self.now.trouble = None;
        if self.reported.elapsed() >= REPORT_EVERY {
            self.report();
        }
    }

    /// Counts bytes of the current file that are there without a download.
    pub(crate) fn already_there(&mut self, bytes: u64) {
        self.now.file_completed = self.now.file_completed.saturating_add(bytes);
        self.now.completed = self.now.completed.saturating_add(bytes);
        self.report();
    }

    /// Counts bytes of the current file that have to come again.
    pub(crate) fn lost(&mut self, bytes: u64) {
        self.now.file_completed = self.now.file_completed.saturating_sub(bytes);
        self.now.completed = self.now.completed.saturating_sub(bytes);
        self.report();
    }

    fn measure(&mut self) {
        let passed = self.since.elapsed();
        if passed < REPORT_EVERY {
            return;
        }
        let (latest, share) = (self.bytes as f64 / passed.as_secs_f64(), passed.div_duration_f64(RATE_OVER).min(1.0));
        let first = self.now.rate == 0.0;
        self.now.rate = if first { latest } else { self.now.rate + (latest - self.now.rate) * share };
        (self.since, self.bytes) = (Instant::now(), 0);
    }

    /// Reports the bytes that came since the last report, also where the line stalls.
    pub(crate) fn report(&mut self) {
        self.measure();
        self.reported = Instant::now();
        // Without readers the pull goes on.
        let _ = self.reports.send(self.now.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_lost_are_counted_again() {
        let (mut meter, reader) = ByteMeter::new();
        meter.set(|now| (now.total, now.file_total, now.trouble) = (200, 200, Some("cut".to_owned())));
        meter.came(150);
        meter.lost(50);
        let seen = reader.borrow().clone();
        assert_eq!((seen.completed, seen.file_completed, seen.percent(), seen.trouble), (100, 100, 50, None));
        assert_eq!(PullProgress::default().percent(), 0);
    }
}
