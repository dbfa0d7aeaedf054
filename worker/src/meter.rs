//! How far requests have come, for callers that ask by a request's id: answers that are not streamed show nothing else
//! before their end.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model_boss_protocol::{WorkProgress, WorkUnit};
use tokio::task_local;

task_local! {
    /// The meter of the request that this task answers.
    static METER: Arc<WorkMeter>;
}

/// The progress of one request; nothing before its work is counted.
#[derive(Debug, Default)]
pub(crate) struct WorkMeter(Mutex<Option<WorkProgress>>);

/// The meters of the requests that are being answered, by their ids.
#[derive(Debug, Default)]
pub(crate) struct WorkMeters(Mutex<HashMap<String, Arc<WorkMeter>>>);

impl WorkMeter {
    /// The meter of the request that this task answers, if somebody may ask for it.
    pub(crate) fn current() -> Option<Arc<Self>> {
        METER.try_with(Arc::clone).ok()
    }

    /// Counts what is done, of a whole that may be unknown.
    pub(crate) fn counted(&self, unit: WorkUnit, done: u64, total: Option<u64>) {
        let mut progress = self.progress();
        let text = progress.take().map(|progress| progress.text).unwrap_or_default();
        *progress = Some(WorkProgress { unit, done, total, text });
    }

    /// Adds to the latest text.
    pub(crate) fn wrote(&self, more: &str) {
        let mut progress = self.progress();
        let Some(WorkProgress { text, .. }) = progress.as_mut() else { return };
        text.push_str(more);
        // Cut at a multiple of its length, so that most calls move nothing.
        if text.len() > 8 * WorkProgress::LONGEST_TEXT {
            *text = latest(text);
        }
    }

    /// The progress so far, with the end of its text.
    fn report(&self) -> Option<WorkProgress> {
        let progress = self.progress().clone()?;
        Some(WorkProgress { text: latest(&progress.text), ..progress })
    }

    fn progress(&self) -> MutexGuard<'_, Option<WorkProgress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn latest(text: &str) -> String {
    let over = text.chars().count().saturating_sub(WorkProgress::LONGEST_TEXT);
    text.chars().skip(over).collect()
}

impl WorkMeters {
    /// Answers a request, whose progress is known by this id until then.
    pub(crate) async fn measure<T>(&self, id: Option<&str>, answer: impl Future<Output = T>) -> T {
        let Some(id) = id else { return answer.await };
        let meter = Arc::new(WorkMeter::default());
        self.all().insert(id.to_owned(), Arc::clone(&meter));
        // The guard, and not a line behind the answer: a client that leaves drops this future.
        let _listed = ListedMeter { meters: self, id, meter: &meter };
        METER.scope(Arc::clone(&meter), answer).await
    }

    /// The progress of a request; none before its work is counted, and after its end.
    pub(crate) fn of(&self, id: &str) -> Option<WorkProgress> {
        let meter = self.all().get(id).cloned();
        meter?.report()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<WorkMeter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a meter in the list, until its request is answered.
struct ListedMeter<'a> {
    meters: &'a WorkMeters,
    id: &'a str,
    meter: &'a Arc<WorkMeter>,
}

impl Drop for ListedMeter<'_> {
    fn drop(&mut self) {
        let mut all = self.meters.all();
        // A later request of the same id has replaced it.
        if all.get(self.id).is_some_and(|listed| Arc::ptr_eq(listed, self.meter)) {
            all.remove(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn rc_26_the_progress_of_a_request_is_known_by_its_id_while_it_is_answered() {
        let meters = WorkMeters::default();
        meters
            .measure(Some("a"), async {
                assert_eq!(meters.of("a"), None, "nothing is counted yet");
                let meter = WorkMeter::current().unwrap();
                meter.wrote("lost");
                meter.counted(WorkUnit::Tokens, 1, Some(9));
                for _ in 0..3_000 {
                    meter.wrote("\u{e4}");
                }
                meter.counted(WorkUnit::Tokens, 2, Some(9));
                let progress = meters.of("a").unwrap();
                assert_eq!((progress.unit, progress.done, progress.total), (WorkUnit::Tokens, 2, Some(9)));
                assert_eq!(progress.text, "\u{e4}".repeat(WorkProgress::LONGEST_TEXT));
                assert_eq!(meters.of("b"), None);
            })
            .await;
        assert_eq!(meters.of("a"), None);
        assert!(WorkMeter::current().is_none());
        // A request without an id cannot be asked for.
        meters.measure(None, async { assert!(WorkMeter::current().is_none()) }).await;
    }

    #[tokio::test]
    async fn rc_26_an_id_that_is_used_twice_belongs_to_the_later_request() {
        let meters = WorkMeters::default();
        let first = meters.measure(Some("a"), async {
            let second = meters.measure(Some("a"), async {
                WorkMeter::current().unwrap().counted(WorkUnit::Items, 7, None);
                assert_eq!(meters.of("a").unwrap().done, 7);
            });
            second.await;
            assert_eq!(meters.of("a"), None);
        });
        first.await;
        assert!(meters.all().is_empty());
    }
}
