//! Changes of the scheduler's views. One task compares them while there are readers. The last events are kept, so that
//! a reader that reconnects or is slow gets them, or the number that it missed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use model_boss_core::{Decision, DeviceView, ModelState, Scheduler, SlotView};
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
#[derive(Default)]
pub(super) struct ReportedViews(BTreeMap<(&'static str, String), ReportedThing>);

/// Something that readers are told of when it changes.
#[derive(Debug, PartialEq)]
enum ReportedThing {
    Slot(SlotView),
    /// The requests of a model: those that wait, and those that run.
    Queue(usize, usize),
    Model(ModelState),
    Device(DeviceView),
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
        let Some(first) = scheduling.view(|scheduler, _| look(scheduler, 0)).await else { return };
        let mut decided = first.decided(0);
        let mut shown = ReportedViews::of(first);
        loop {
            while self.listeners.load(Ordering::Acquire) == 0 {
                pulse.listen(false);
                self.came.notified().await;
            }
            pulse.listen(true);
            let Some(mut now) = scheduling.view(move |scheduler, _| look(scheduler, decided)).await else { return };
            decided = now.decided(decided);
            let decisions = std::mem::take(&mut now.decisions);
            let now = ReportedViews::of(now);
            self.publish_changes(&shown, &now, clock);
            for decision in decisions {
                self.publish("decision", &clock.dated(json!(decision)));
            }
            shown = now;
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

    fn publish_changes(&self, before: &ReportedViews, now: &ReportedViews, clock: Clock) {
        for (key, thing) in &now.0 {
            if before.0.get(key) != Some(thing) {
                self.publish(key.0, &thing.value(&key.1, clock));
            }
        }
        for (kind, name) in before.0.keys().filter(|key| !now.0.contains_key(*key)) {
            self.publish(kind, &json!({ "id": name, "gone": true }));
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
    slots: Vec<SlotView>,
    models: Vec<ModelState>,
    devices: Vec<DeviceView>,
    decisions: Vec<Decision>,
}

/// Reads the views, and the decisions behind the number of the last reported one.
pub(super) fn look(scheduler: &Scheduler, decided: u64) -> SchedulerViews {
    let newest = scheduler.decisions().rev().take_while(|decision| decision.seq > decided);
    let mut decisions: Vec<Decision> = newest.cloned().collect();
    decisions.reverse();
    let (slots, models, devices) = (scheduler.slots(), scheduler.model_states(), scheduler.devices());
    SchedulerViews { slots, models, devices, decisions }
}

impl SchedulerViews {
    /// The number of the last decision.
    fn decided(&self, before: u64) -> u64 {
        self.decisions.last().map_or(before, |decision| decision.seq)
    }
}

impl ReportedViews {
    fn of(views: SchedulerViews) -> Self {
        let SchedulerViews { slots, models, devices, decisions: _ } = views;
        let mut things = BTreeMap::new();
        for slot in slots {
            things.insert(("slot", slot.id.to_string()), ReportedThing::Slot(slot));
        }
        for model in models {
            let name = model.id.to_string();
            things.insert(("queue", name.clone()), ReportedThing::Queue(model.queued, model.running));
            // Counts of requests belong to the queue.
            things.insert(("model", name), ReportedThing::Model(ModelState { queued: 0, running: 0, ..model }));
        }
        for device in devices {
            things.insert(("device", device.id.to_string()), ReportedThing::Device(device));
        }
        Self(things)
    }

    /// Everything as one value, by the plural of its kind.
    pub(super) fn state(views: SchedulerViews, clock: Clock) -> Value {
        let mut state: BTreeMap<&str, Vec<Value>> =
            ["slots", "queue", "models", "devices"].map(|kind| (kind, Vec::new())).into();
        for ((kind, name), thing) in Self::of(views).0 {
            let all = match kind {
                "slot" => "slots",
                "model" => "models",
                "device" => "devices",
                other => other,
            };
            state.entry(all).or_default().push(thing.value(&name, clock));
        }
        json!(state)
    }
}

impl ReportedThing {
    /// The thing as readers see it.
    fn value(&self, name: &str, clock: Clock) -> Value {
        match self {
            Self::Slot(slot) => clock.dated(json!(slot)),
            Self::Queue(queued, running) => json!({ "id": name, "queued": queued, "running": running }),
            Self::Model(model) => json!({ "id": name, "status": model.status, "failure": model.failure }),
            Self::Device(device) => clock.dated(json!(device)),
        }
    }
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
    use model_boss_core::ModelStatus;

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
    fn a_change_is_told_once_and_so_is_what_is_gone() {
        let (changes, clock) = (ChangeFeed::new(), Clock::start());
        let model =
            |queued| ModelState { id: "m".into(), status: ModelStatus::Unloaded, failure: None, queued, running: 0 };
        let shown =
            |models| ReportedViews::of(SchedulerViews { slots: vec![], models, devices: vec![], decisions: vec![] });
        let none = || shown(vec![]);
        changes.publish_changes(&none(), &shown(vec![model(0)]), clock);
        changes.publish_changes(&shown(vec![model(0)]), &shown(vec![model(0)]), clock);
        changes.publish_changes(&shown(vec![model(0)]), &shown(vec![model(1)]), clock);
        changes.publish_changes(&shown(vec![model(1)]), &none(), clock);
        let text = String::from_utf8(changes.after(0).unwrap().0.to_vec()).unwrap();
        let told = |kind: &str| text.matches(&format!("event: {kind}\n")).count();
        assert_eq!((told("queue"), told("model")), (3, 2), "{text}");
        assert_eq!(text.matches("\"gone\":true").count(), 2, "{text}");
    }
}
