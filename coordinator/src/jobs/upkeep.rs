//! Records that go with time: results that were kept long enough, and files with an end.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::desk::Jobs;
use super::wall::now;

/// The pause between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(5);

impl Jobs {
    /// Forgets what is outdated, until the coordinator drains.
    pub(super) async fn keep_up(self: Arc<Self>) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = looks.tick() => {}
                () = self.draining.cancelled() => return,
            }
            self.forget_outdated().await;
        }
    }

    async fn forget_outdated(self: &Arc<Self>) {
        let at = now();
        let (jobs, uploads, batches) = {
            let book = self.book();
            let is_over = |upload: &&model_boss_jobs::StoredUpload| upload.expires.is_some_and(|end| end <= at);
            let uploads: Vec<String> = book
                .uploads
                .values()
                .filter(|upload| is_over(upload) && book.batch_that_needs(&upload.id).is_none())
                .map(|upload| upload.id.clone())
                .collect();
            let is_old = |batch: &&model_boss_jobs::BatchRecord| {
                batch.state.is_final()
                    && batch.times.values().max().is_some_and(|last| at.since(*last) >= self.settings.keep)
            };
            let batches: Vec<String> = book.batches.values().filter(is_old).map(|batch| batch.id.clone()).collect();
            (book.table.outdated(at, self.limits()), uploads, batches)
        };
        for id in jobs {
            // A record that cannot be forgotten now is forgotten later.
            let _ = self.forget(&id).await;
        }
        for id in uploads {
            let _ = self.forget_upload(&id).await;
        }
        for id in batches {
            let _ = self.forget_batch(&id).await;
        }
    }
}
