//! All jobs by their names, and the order in which they are taken up. The table is pure: time is an argument.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use model_boss_protocol::Priority;

use crate::ids::JobId;
use crate::record::{JobRecord, JobState};
use crate::time::WallTime;

/// Limits of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLimits {
    /// The most jobs that may wait or run.
    pub most: usize,
    /// The most jobs in the scheduler's queue at once.
    pub in_flight: usize,
    /// The time for which an ended job is kept.
    pub keep: Duration,
}

/// A job with what only this process knows of it.
#[derive(Clone, Debug, PartialEq)]
pub struct TableEntry {
    /// The job as it is kept.
    pub record: JobRecord,
    /// Whether a request for it is in the scheduler's queue or with a worker.
    pub in_flight: bool,
    /// The requests for it so far.
    pub tries: u32,
    /// The time before which it is not tried again.
    pub rests_until: Option<WallTime>,
    /// The number of its last change.
    pub revision: u64,
}

/// The numbers of jobs by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobCounts {
    /// Jobs that wait, and are in no queue of the scheduler.
    pub waiting: usize,
    /// Jobs in the scheduler's queue or with a worker.
    pub in_flight: usize,
    /// Jobs with a result.
    pub succeeded: usize,
    /// Jobs with an error.
    pub failed: usize,
    /// Jobs that were cancelled.
    pub cancelled: usize,
}

/// All jobs.
#[derive(Debug, Default)]
pub struct JobTable {
    entries: BTreeMap<JobId, TableEntry>,
    /// Jobs that may be taken up, the most important and oldest first.
    ready: BTreeSet<(Priority, JobId)>,
    resting: BTreeSet<(WallTime, JobId)>,
    deadlines: BTreeSet<(WallTime, JobId)>,
    ended: BTreeSet<(WallTime, JobId)>,
    keys: HashMap<(String, String), JobId>,
    /// The jobs in flight of each client.
    clients: HashMap<String, usize>,
    /// The jobs in flight that ask each model.
    models: HashMap<Option<String>, usize>,
    counts: JobCounts,
    bytes: u64,
    revision: u64,
}

impl JobTable {
    /// The job of this name.
    pub fn get(&self, id: &JobId) -> Option<&TableEntry> {
        self.entries.get(id)
    }

    /// The jobs, the newest first.
    pub fn newest_first(&self) -> impl Iterator<Item = &TableEntry> {
        self.entries.values().rev()
    }

    /// The numbers of jobs by state.
    pub const fn counts(&self) -> JobCounts {
        self.counts
    }

    /// The bytes of all bodies and results.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of jobs that wait or run.
    pub const fn open(&self) -> usize {
        self.counts.waiting.saturating_add(self.counts.in_flight)
    }

    /// The job that a client named by this key.
    pub fn by_key(&self, client: &str, key: &str) -> Option<&TableEntry> {
        self.keys.get(&(client.to_owned(), key.to_owned())).and_then(|id| self.entries.get(id))
    }

    /// Adds a job, or one that was read from the store.
    pub fn insert(&mut self, record: JobRecord) {
        self.remove(&record.id.clone());
        if let Some(key) = &record.idempotency_key {
            self.keys.insert((record.owner.client.clone(), key.clone()), record.id.clone());
        }
        self.bytes = self.bytes.saturating_add(record.bytes());
        let id = record.id.clone();
        let entry = TableEntry { record, in_flight: false, tries: 0, rests_until: None, revision: self.changed() };
        self.file(&entry);
        self.entries.insert(id, entry);
    }

    /// Removes a job.
    pub fn remove(&mut self, id: &JobId) -> Option<JobRecord> {
        let entry = self.entries.remove(id)?;
        self.unfile(&entry);
        if let Some(key) = &entry.record.idempotency_key {
            self.keys.remove(&(entry.record.owner.client.clone(), key.clone()));
        }
        self.bytes = self.bytes.saturating_sub(entry.record.bytes());
        self.changed();
        Some(entry.record)
    }

    /// Takes up the next job: the most important one, the oldest first. Where others wait too, a client has at most
    /// half of all places, so that one client's jobs do not keep those of others from the queue. The jobs of one model
    /// have at most half of the places that other models' jobs leave: while they wait for their model, there is always
    /// a place for a model that is free.
    pub fn take_next(&mut self, now: WallTime, limits: TableLimits) -> Option<JobId> {
        self.wake(now);
        if self.counts.in_flight >= limits.in_flight {
            return None;
        }
        let share = limits.in_flight.div_ceil(2);
        let client_may =
            |entry: &TableEntry| self.clients.get(&entry.record.owner.client).copied().unwrap_or(0) < share;
        let model_may = |entry: &TableEntry| {
            let own = self.models.get(&entry.record.model).copied().unwrap_or(0);
            let left = limits.in_flight.saturating_sub(self.counts.in_flight.saturating_sub(own));
            entry.record.model.is_none() || own < left.div_ceil(2)
        };
        let mut first = None;
        for (_, id) in &self.ready {
            let Some(entry) = self.entries.get(id).filter(|entry| model_may(entry)) else { continue };
            if client_may(entry) {
                first = Some(id);
                break;
            }
            first = first.or(Some(id));
        }
        let id = first.cloned()?;
        self.change(&id, |entry| {
            entry.in_flight = true;
            entry.tries = entry.tries.saturating_add(1);
        });
        Some(id)
    }

    /// The job is not in flight any more, and waits until this time.
    pub fn rest(&mut self, id: &JobId, until: WallTime) {
        self.change(id, |entry| {
            entry.in_flight = false;
            entry.rests_until = Some(until);
        });
    }

    /// Replaces the record of a job.
    pub fn update(&mut self, record: JobRecord) {
        let id = record.id.clone();
        let before = self.entries.get(&id).map_or(0, |entry| entry.record.bytes());
        self.bytes = self.bytes.saturating_sub(before).saturating_add(record.bytes());
        self.change(&id, |entry| {
            entry.in_flight &= !record.has_ended();
            entry.record = record;
        });
    }

    /// Notes a change that only this process knows of.
    pub fn touch(&mut self, id: &JobId) {
        self.change(id, |_| {});
    }

    /// The number of jobs that are taken up before this one.
    pub fn before(&self, id: &JobId) -> Option<usize> {
        let entry = self.entries.get(id).filter(|entry| !entry.in_flight && !entry.record.has_ended())?;
        let key = (entry.record.rank(), id.clone());
        Some(self.ready.range(..&key).count())
    }

    /// The next time at which something is due: a rest ends, or a deadline passes.
    pub fn next_due(&self) -> Option<WallTime> {
        let first = |set: &BTreeSet<(WallTime, JobId)>| set.first().map(|(at, _)| *at);
        [first(&self.resting), first(&self.deadlines)].into_iter().flatten().min()
    }

    /// Jobs whose deadline has passed.
    pub fn late(&self, now: WallTime) -> Vec<JobId> {
        self.deadlines.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| id.clone()).collect()
    }

    /// Ended jobs that were kept long enough.
    pub fn outdated(&self, now: WallTime, limits: TableLimits) -> Vec<JobId> {
        let is_old = |(ended, _): &&(WallTime, JobId)| now.since(*ended) >= limits.keep;
        self.ended.iter().take_while(is_old).map(|(_, id)| id.clone()).collect()
    }

    fn wake(&mut self, now: WallTime) {
        while let Some((at, id)) = self.resting.first().cloned() {
            if at > now {
                return;
            }
            self.change(&id, |entry| entry.rests_until = None);
        }
    }

    fn change(&mut self, id: &JobId, change: impl FnOnce(&mut TableEntry)) {
        let Some(mut entry) = self.entries.remove(id) else { return };
        self.unfile(&entry);
        change(&mut entry);
        entry.revision = self.changed();
        self.file(&entry);
        self.entries.insert(id.clone(), entry);
    }

    fn changed(&mut self) -> u64 {
        self.revision = self.revision.saturating_add(1);
        self.revision
    }

    /// Enters a job in the orders to which it belongs.
    fn file(&mut self, entry: &TableEntry) {
        let id = entry.record.id.clone();
        *self.count_of(entry) += 1;
        match entry.record.ended {
            Some(ended) => _ = self.ended.insert((ended, id)),
            None => {
                if let Some(deadline) = entry.record.deadline {
                    self.deadlines.insert((deadline, id.clone()));
                }
                match entry.rests_until {
                    _ if entry.in_flight => {
                        *self.clients.entry(entry.record.owner.client.clone()).or_default() += 1;
                        *self.models.entry(entry.record.model.clone()).or_default() += 1;
                    }
                    Some(until) => _ = self.resting.insert((until, id)),
                    None => _ = self.ready.insert((entry.record.rank(), id)),
                }
            }
        }
    }

    fn unfile(&mut self, entry: &TableEntry) {
        let id = entry.record.id.clone();
        let count = self.count_of(entry);
        *count = count.saturating_sub(1);
        match entry.record.ended {
            Some(ended) => _ = self.ended.remove(&(ended, id)),
            None => {
                if let Some(deadline) = entry.record.deadline {
                    self.deadlines.remove(&(deadline, id.clone()));
                }
                match entry.rests_until {
                    _ if entry.in_flight => {
                        one_less(&mut self.clients, &entry.record.owner.client);
                        one_less(&mut self.models, &entry.record.model);
                    }
                    Some(until) => _ = self.resting.remove(&(until, id)),
                    None => _ = self.ready.remove(&(entry.record.rank(), id)),
                }
            }
        }
    }

    fn count_of(&mut self, entry: &TableEntry) -> &mut usize {
        match entry.record.state {
            JobState::Queued if entry.in_flight => &mut self.counts.in_flight,
            JobState::Queued => &mut self.counts.waiting,
            JobState::Succeeded => &mut self.counts.succeeded,
            JobState::Failed => &mut self.counts.failed,
            JobState::Cancelled => &mut self.counts.cancelled,
        }
    }
}

/// One job less of a client or a model.
fn one_less<K: std::hash::Hash + Eq + Clone>(counts: &mut HashMap<K, usize>, of: &K) {
    match counts.get(of).map_or(0, |count| count.saturating_sub(1)) {
        0 => _ = counts.remove(of),
        left => _ = counts.insert(of.clone(), left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::order;
    use crate::record::{JobEvent, JobRules, KeptAnswer};

    const LIMITS: TableLimits = TableLimits { most: 100, in_flight: 4, keep: Duration::from_secs(60) };
    const NOW: WallTime = WallTime(1_000_000);

    fn job(number: u64, client: &str, priority: u8) -> JobRecord {
        let priority = Some(Priority::new(priority).unwrap());
        JobRecord::accepted(crate::record::JobOrder { priority, ..order(number, client) }, NOW)
    }

    fn names(ids: impl IntoIterator<Item = JobId>) -> Vec<String> {
        ids.into_iter().map(|id| id.to_string()).collect()
    }

    fn all(table: &mut JobTable, now: WallTime) -> Vec<String> {
        let mut taken = Vec::new();
        while let Some(id) = table.take_next(now, LIMITS) {
            taken.push(id);
        }
        names(taken)
    }

    #[test]
    fn rc_26_jobs_are_taken_up_by_importance_and_age_within_the_places() {
        let mut table = JobTable::default();
        for (number, priority) in [(1, 5), (2, 8), (3, 5), (4, 0), (5, 9), (6, 9)] {
            table.insert(job(number, if number == 5 { "b" } else { "a" }, priority));
        }
        assert_eq!(table.before(&JobId::named("job-0002")), Some(3));
        // The third place is another client's, and the last one nobody's else.
        assert_eq!(all(&mut table, NOW), ["job-0004", "job-0001", "job-0005", "job-0003"]);
        assert_eq!((table.counts().in_flight, table.counts().waiting, table.open()), (4, 2, 6));
        assert_eq!(table.before(&JobId::named("job-0004")), None);
    }

    #[test]
    fn rc_26_jobs_that_wait_for_one_model_leave_places_for_those_of_others() {
        let mut table = JobTable::default();
        let of = |number: u64, model: &str, priority: u8| JobRecord {
            model: Some(model.to_owned()),
            ..job(number, "a", priority)
        };
        for number in 1..=9 {
            table.insert(of(number, "blocked", 5));
        }
        let limits = TableLimits { in_flight: 8, ..LIMITS };
        let taken = |table: &mut JobTable| names(std::iter::from_fn(|| table.take_next(NOW, limits)));
        assert_eq!(taken(&mut table).len(), 4, "half of the places");
        for (number, model) in [(20, "other"), (21, "other"), (22, "other"), (30, "third"), (40, "fourth")] {
            table.insert(of(number, model, 9));
        }
        assert_eq!(taken(&mut table), ["job-0020", "job-0021", "job-0030", "job-0040"], "half of what is left");
        table.rest(&JobId::named("job-0020"), NOW.after(Duration::from_secs(9)));
        assert_eq!(taken(&mut table), [] as [&str; 0], "the last place is for a model that comes");
        assert!(table.remove(&JobId::named("job-0001")).is_some());
        assert_eq!(taken(&mut table), ["job-0022"]);
    }

    #[test]
    fn rc_26_a_job_that_rests_comes_back_when_its_time_has_come() {
        let mut table = JobTable::default();
        table.insert(job(1, "a", 5));
        let id = table.take_next(NOW, LIMITS).unwrap();
        let later = NOW.after(Duration::from_secs(9));
        table.rest(&id, later);
        assert_eq!((table.take_next(NOW, LIMITS), table.next_due()), (None, Some(later)));
        assert_eq!(table.take_next(later, LIMITS), Some(id.clone()));
        assert_eq!(table.get(&id).unwrap().tries, 2);
    }

    #[test]
    fn rc_26_an_ended_job_gives_its_bytes_back_when_it_was_kept_long_enough() {
        let mut table = JobTable::default();
        table.insert(JobRecord { idempotency_key: Some("k".to_owned()), ..job(1, "a", 5) });
        assert_eq!(table.bytes(), 10);
        let id = table.take_next(NOW, LIMITS).unwrap();
        let mut record = table.get(&id).unwrap().record.clone();
        let answer = KeptAnswer { status: 200, content_type: String::new(), bytes: 7, model: None };
        record.apply(NOW, JobEvent::Answered(answer), JobRules { max_crashes: 3 });
        table.update(record);
        assert_eq!((table.bytes(), table.counts().succeeded, table.counts().in_flight), (17, 1, 0));
        let old = NOW.after(LIMITS.keep);
        assert_eq!(table.outdated(NOW, LIMITS), []);
        assert_eq!(table.outdated(old, LIMITS), std::slice::from_ref(&id));
        assert!(table.by_key("a", "k").is_some() && table.by_key("b", "k").is_none());
        table.remove(&id);
        assert_eq!((table.bytes(), table.counts(), table.by_key("a", "k")), (0, JobCounts::default(), None));
        assert!(table.clients.is_empty());
    }
}
