//! Changes of the scheduler's views. One task compares them while there are readers. The last events are kept, so that
//! a reader that reconnects or is slow gets them, or the number that it missed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use model_boss_core::Scheduler;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use super::clock::Clock;
use crate::scheduling::{Pulse, Scheduling};

/// The number of events kept for readers that are behind.
const KEPT: usize = 1_024;

/// The most events given to a reader at once.
const PIECE: usize = 64;

/// The interval within which changes are merged into one.
const SETTLE: Duration = Duration::from_millis(50);

/// The last events, and the number of readers.
pub(crate) struct ChangeFeed {
    recent: Mutex<RecentEvents>,
    newest: watch::Sender<u64>,
    listeners: AtomicUsize,
    came: Notify,
}

/// One event as it is sent.
type SentEvent = Bytes;

#[derive(Default)]
struct RecentEvents {
    /// The number of the first kept event; numbers count from 1.
    first: u64,
    lines: VecDeque<SentEvent>,
}

/// The views of the last comparison, by kind and name.
#[derive(Default, Clone)]
pub(super) struct ReportedViews {
    pub(super) things: BTreeMap<(&'static str, String), Value>,
    /// The number of the last reported decision.
    decided: u64,
}

impl ChangeFeed {
    /// No events, and no readers.
    pub(crate) fn new() -> Self {
        let recent = RecentEvents { first: 1, lines: VecDeque::new() };
        Self {
            recent: Mutex::new(recent),
            newest: watch::Sender::new(0),
            listeners: AtomicUsize::new(0),
            came: Notify::new(),
        }
    }

    /// Compares the views as long as the process runs, but only while there are readers.
    pub(crate) async fn follow(self: Arc<Self>, scheduling: Scheduling, pulse: Arc<Pulse>, clock: Clock) {
        // The state at the start is no change.
        let Some(first) = scheduling.view(move |scheduler, _| look(scheduler, 0, clock)).await else { return };
        let mut shown = first.shown;
        loop {
            while self.listeners.load(Ordering::Acquire) == 0 {
                pulse.listen(false);
                self.came.notified().await;
            }
            pulse.listen(true);
            let last = shown.clone();
            let Some(now) = scheduling.view(move |scheduler, _| look(scheduler, last.decided, clock)).await else {
                return;
            };
            self.publish_changes(&shown, &now);
            shown = now.shown;
            tokio::time::sleep(SETTLE).await;
            tokio::select! {
                () = pulse.beat() => {}
                () = self.came.notified() => {}
            }
        }
    }

    /// Adds an event.
    pub(crate) fn publish(&self, kind: &str, data: &Value) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let number = recent.first + recent.lines.len() as u64;
        recent.lines.push_back(Bytes::from(format!("id: {number}\nevent: {kind}\ndata: {data}\n\n")));
        if recent.lines.len() > KEPT {
            recent.lines.pop_front();
            recent.first += 1;
        }
        self.newest.send_replace(number);
    }

    pub(super) fn publish_changes(&self, before: &ReportedViews, now: &SchedulerViews) {
        for ((kind, name), value) in &now.shown.things {
            if before.things.get(&(*kind, name.clone())) != Some(value) {
                self.publish(kind, value);
            }
        }
        for (kind, name) in before.things.keys().filter(|key| !now.shown.things.contains_key(*key)) {
            self.publish(kind, &json!({ "id": name, "gone": true }));
        }
        for decision in &now.decisions {
            self.publish("decision", decision);
        }
    }

    /// The events after number `after`, at most [`PIECE`], with the number of the last. Returns `None` when there is
    /// none yet.
    pub(super) fn after(&self, after: u64) -> Option<(Bytes, u64)> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let end = recent.first + recent.lines.len() as u64;
        if after + 1 >= end {
            return None;
        }
        let mut piece = Vec::new();
        let from = (after + 1).max(recent.first);
        if from > after + 1 {
            let missed = json!({ "missed": from - after - 1 });
            piece.extend_from_slice(format!("id: {}\nevent: missed\ndata: {missed}\n\n", from - 1).as_bytes());
        }
        let skip = usize::try_from(from - recent.first).unwrap_or(usize::MAX);
        let lines = recent.lines.iter().skip(skip).take(PIECE);
        let mut last = from - 1;
        for line in lines {
            piece.extend_from_slice(line);
            last += 1;
        }
        Some((Bytes::from(piece), last))
    }

    pub(super) fn newest(&self) -> u64 {
        *self.newest.borrow()
    }

    pub(super) async fn wait_for_more(&self, after: u64) {
        // The wait cannot fail: `self` owns the sender.
        let _ = self.newest.subscribe().wait_for(|newest| *newest > after).await;
    }
}

/// The scheduler's views at one moment.
pub(super) struct SchedulerViews {
    pub(super) shown: ReportedViews,
    decisions: Vec<Value>,
}

pub(super) fn look(scheduler: &Scheduler, decided: u64, clock: Clock) -> SchedulerViews {
    let mut things = BTreeMap::new();
    let value = |thing: Result<Value, serde_json::Error>| clock.dated(thing.unwrap_or_default());
    for slot in scheduler.slots() {
        things.insert(("slot", slot.id.to_string()), value(serde_json::to_value(&slot)));
    }
    for model in scheduler.models() {
        let queue = json!({ "id": model.id, "queued": model.queued, "running": model.running });
        things.insert(("queue", model.id.to_string()), queue);
        let status = json!({ "id": model.id, "status": model.status, "failure": model.failure });
        things.insert(("model", model.id.to_string()), status);
    }
    for device in scheduler.devices() {
        things.insert(("device", device.id.to_string()), value(serde_json::to_value(&device)));
    }
    let new: Vec<_> = scheduler.decisions().rev().take_while(|decision| decision.seq > decided).collect();
    let last = new.first().map_or(decided, |decision| decision.seq);
    let decisions = new.into_iter().rev().map(|decision| value(serde_json::to_value(decision))).collect();
    SchedulerViews { shown: ReportedViews { things, decided: last }, decisions }
}

/// A reader, counted until this value is dropped.
pub(super) struct EventReader(pub(super) Arc<ChangeFeed>);

impl EventReader {
    pub(super) fn new(changes: &Arc<ChangeFeed>) -> Self {
        changes.listeners.fetch_add(1, Ordering::AcqRel);
        changes.came.notify_one();
        Self(Arc::clone(changes))
    }
}

impl Drop for EventReader {
    fn drop(&mut self) {
        self.0.listeners.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ChangeFeed;

    #[test]
    fn events_are_numbered_and_given_once() {
        let changes = ChangeFeed::new();
        assert_eq!(changes.after(0), None);
        changes.publish("device", &json!({ "id": "cpu" }));
        changes.publish("device", &json!({ "id": "cuda:0" }));
        let (piece, last) = changes.after(0).unwrap();
        let text = String::from_utf8(piece.to_vec()).unwrap();
        assert!(text.starts_with("id: 1\nevent: device\ndata: {\"id\":\"cpu\"}\n\nid: 2\n"), "{text}");
        assert_eq!((last, changes.after(last)), (2, None));
        assert_eq!(changes.after(1).unwrap().1, 2);
    }

    #[test]
    fn a_reader_that_is_behind_is_told_how_much_it_missed() {
        let changes = ChangeFeed::new();
        for _ in 0..KEPT + 10 {
            changes.publish("queue", &json!({}));
        }
        let (piece, last) = changes.after(3).unwrap();
        let text = String::from_utf8(piece.to_vec()).unwrap();
        assert!(text.starts_with("id: 10\nevent: missed\ndata: {\"missed\":7}\n\nid: 11\n"), "{text}");
        assert_eq!(last, 10 + PIECE as u64);
        let mut after = last;
        let mut seen = last - 10;
        while let Some((_, last)) = changes.after(after) {
            seen += last - after;
            after = last;
        }
        assert_eq!(seen, KEPT as u64);
    }

    #[test]
    fn what_is_gone_is_told() {
        let changes = ChangeFeed::new();
        let thing = |n: u64| (("slot", "1".to_owned()), json!({ "id": 1, "running": n }));
        let shown = |things: Vec<_>| ReportedViews { things: things.into_iter().collect(), decided: 0 };
        let look = |things| SchedulerViews { shown: shown(things), decisions: Vec::new() };
        changes.publish_changes(&shown(vec![]), &look(vec![thing(0)]));
        changes.publish_changes(&shown(vec![thing(0)]), &look(vec![thing(0)]));
        changes.publish_changes(&shown(vec![thing(0)]), &look(vec![thing(1)]));
        changes.publish_changes(&shown(vec![thing(1)]), &look(vec![]));
        let text = String::from_utf8(changes.after(0).unwrap().0.to_vec()).unwrap();
        assert_eq!(text.matches("event: slot").count(), 3, "{text}");
        assert!(text.contains("\"gone\":true"), "{text}");
    }
}
