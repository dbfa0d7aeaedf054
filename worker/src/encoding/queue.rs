//! The order in which requests for vectors are computed. Knows items and their rows, no encoder.

use std::collections::BTreeMap;

use model_boss_engine::{Activity, DecoderError, EngineError};
use model_boss_protocol::{Priority, WorkUnit};
use tokio::sync::mpsc;

use super::job::{EncodeError, EncodeItem, EncodeJob, EncodePart, EncodedRows};

/// Rows of a batch for each core, and the least of all. More do not make products faster, and make the parts longer
/// between which a short request comes in.
const ROWS_OF_CORE: usize = 128;
const LEAST_ROWS: usize = 256;

/// Rows of a request that is short.
const SHORT_ROWS: usize = 64;

/// Batches that a request is passed over in favour of more important ones before it has its turn.
const MOST_PASSED: u32 = 8;

/// All requests that are not answered yet.
pub(super) struct EncodeQueue {
    inbox: mpsc::Receiver<EncodeJob>,
    /// By their numbers, in the order of their arrival.
    pending: BTreeMap<u64, PendingJob>,
    arrived: u64,
    /// Rows that a text has at least.
    text_rows: usize,
    /// Rows of a batch.
    batch_rows: usize,
}

/// A request of which some items are done.
struct PendingJob {
    job: EncodeJob,
    rows: Vec<EncodedRows>,
    /// Whether some of its items are being computed.
    is_computed: bool,
    /// Batches since its last turn.
    passed: u32,
}

/// Items that are computed together.
pub(super) struct EncodeBatch {
    pub(super) parts: Vec<EncodePart>,
    pub(super) rows: usize,
    /// The priority of its most important request.
    priority: Priority,
}

impl EncodeQueue {
    pub(super) fn new(inbox: mpsc::Receiver<EncodeJob>, text_rows: usize, cores: usize) -> Self {
        let batch_rows = (ROWS_OF_CORE * cores).max(LEAST_ROWS);
        Self { inbox, pending: BTreeMap::new(), arrived: 0, text_rows, batch_rows }
    }

    /// The next batch, once there is a request; none when no request can come any more.
    pub(super) fn next_batch(&mut self, activity: &Activity) -> Option<EncodeBatch> {
        loop {
            self.collect();
            if self.pending.is_empty() {
                activity.occupied(0, 0);
                let job = self.inbox.blocking_recv()?;
                self.push(job);
                continue;
            }
            let batch = self.batch(&self.candidates());
            self.pass_over();
            // Published before the batch, so that one that never ends is visible with its requests.
            activity.occupied(batch.parts.len(), self.pending.len() - batch.parts.len());
            return Some(batch);
        }
    }

    /// The requests of the next batch. Short ones do not wait for the rest of a batch with long ones: if any of the
    /// most important is short, it has a batch of its own.
    fn candidates(&self) -> Vec<u64> {
        let best = self.pending.values().map(PendingJob::rank).min();
        let is_short = |pending: &PendingJob| {
            Some(pending.rank()) == best && pending.is_of_texts() && pending.rows_left(self.text_rows) <= SHORT_ROWS
        };
        let numbers = |of: &dyn Fn(&PendingJob) -> bool| -> Vec<u64> {
            self.pending.iter().filter(|(_, pending)| of(pending)).map(|(number, _)| *number).collect()
        };
        let short = numbers(&is_short);
        if short.is_empty() { numbers(&|_| true) } else { short }
    }

    /// Requests that go before a batch that is being computed: those that are more important, and short ones that are
    /// not less important.
    pub(super) fn urgent_batch(&mut self, running: &EncodeBatch) -> Option<EncodeBatch> {
        self.collect();
        let text_rows = self.text_rows;
        let goes_before = |(number, pending): (&u64, &PendingJob)| {
            let is_short = || pending.rows_left(text_rows) <= SHORT_ROWS && running.rows > SHORT_ROWS;
            let priority = pending.job.priority;
            let goes = priority < running.priority || priority == running.priority && is_short();
            (!pending.is_computed && pending.is_of_texts() && goes).then_some(*number)
        };
        let urgent: Vec<u64> = self.pending.iter().filter_map(goes_before).collect();
        (!urgent.is_empty()).then(|| self.batch(&urgent))
    }

    /// Hands the rows of a batch on, and answers requests that are done. If the batch failed, so did its requests; the
    /// error is that of a device that was lost.
    pub(super) fn finish(
        &mut self,
        batch: &EncodeBatch,
        encoded: Result<Vec<EncodedRows>, DecoderError>,
    ) -> Result<(), EngineError> {
        let numbers = batch.parts.iter().map(|part| part.job);
        let mut rows = match encoded {
            Ok(rows) => rows.into_iter(),
            Err(DecoderError::Fatal(why)) => return Err(EngineError::DeviceLost(why)),
            Err(error) => {
                for failed in numbers.filter_map(|number| self.pending.remove(&number)) {
                    // The client may be gone.
                    let _ = failed.job.reply.send(Err(EncodeError::of(&error)));
                }
                return Ok(());
            }
        };
        for part in &batch.parts {
            let of_part: Vec<EncodedRows> = rows.by_ref().take(part.range.len()).collect();
            let Some(pending) = self.pending.get_mut(&part.job) else { continue };
            pending.rows.extend(of_part);
            pending.is_computed = false;
            pending.count();
            if pending.rows.len() == pending.job.items.len()
                && let Some(done) = self.pending.remove(&part.job)
            {
                // The client may be gone.
                let _ = done.job.reply.send(Ok(done.rows));
            }
        }
        Ok(())
    }

    /// Takes requests in that have come, and drops those whose clients are gone.
    fn collect(&mut self) {
        while let Ok(job) = self.inbox.try_recv() {
            self.push(job);
        }
        self.pending.retain(|_, pending| pending.is_computed || !pending.job.reply.is_closed());
    }

    fn push(&mut self, job: EncodeJob) {
        let pending = PendingJob { job, rows: Vec::new(), is_computed: false, passed: 0 };
        self.pending.insert(self.arrived, pending);
        self.arrived += 1;
    }

    /// A batch of these requests' items. The most important requests come first; of equals each has one item in turn,
    /// beginning with the one that waits longest.
    fn batch(&mut self, numbers: &[u64]) -> EncodeBatch {
        let mut candidates: Vec<(Priority, u32, u64)> = Vec::with_capacity(numbers.len());
        for number in numbers {
            if let Some(pending) = self.pending.get(number) {
                candidates.push((pending.rank(), u32::MAX - pending.passed, *number));
            }
        }
        candidates.sort_unstable();
        // The requests' own: one that has its turn for its patience pauses for others as always.
        let (mut parts, mut rows, mut priority) = (Vec::new(), 0, Priority::LOWEST);
        for equals in candidates.chunk_by(|one, other| one.0 == other.0) {
            let lengths = |(_, _, number): &(Priority, u32, u64)| {
                self.pending.get(number).map(|pending| pending.lengths_left(self.text_rows)).unwrap_or_default()
            };
            let left: Vec<Vec<usize>> = equals.iter().map(lengths).collect();
            let counts = in_turn(&left, &mut rows, self.batch_rows);
            for ((_, _, number), count) in equals.iter().zip(counts) {
                if let Some(pending) = self.pending.get_mut(number).filter(|_| count > 0) {
                    pending.is_computed = true;
                    priority = priority.min(pending.job.priority);
                    let (items, form) = (pending.job.items.clone(), pending.job.form);
                    let range = pending.rows.len()..pending.rows.len() + count;
                    parts.push(EncodePart { job: *number, items, range, form });
                }
            }
        }
        EncodeBatch { parts, rows, priority }
    }

    /// Counts a batch for requests of which nothing is in it.
    fn pass_over(&mut self) {
        for pending in self.pending.values_mut() {
            pending.passed = if pending.is_computed { 0 } else { pending.passed.saturating_add(1) };
        }
    }
}

impl PendingJob {
    /// Its priority; that of the most important once it was passed over for long.
    fn rank(&self) -> Priority {
        if self.passed < MOST_PASSED { self.job.priority } else { Priority::HIGHEST }
    }

    /// Tells those who ask how many items are done.
    fn count(&self) {
        if let Some(meter) = &self.job.meter {
            meter.counted(WorkUnit::Items, self.rows.len() as u64, Some(self.job.items.len() as u64));
        }
    }

    /// Rows of the items that are left, where a text has at least so many.
    fn lengths_left(&self, text_rows: usize) -> Vec<usize> {
        let rows = |item: &EncodeItem| match item {
            EncodeItem::Text(_) => item.rows().max(text_rows),
            EncodeItem::Image { .. } => item.rows(),
        };
        self.job.items.iter().skip(self.rows.len()).map(rows).collect()
    }

    fn rows_left(&self, text_rows: usize) -> usize {
        self.lengths_left(text_rows).iter().sum()
    }

    /// Whether it has no images.
    fn is_of_texts(&self) -> bool {
        self.job.items.iter().all(|item| matches!(item, EncodeItem::Text(_)))
    }
}

/// How many items of each request are in the next batch, by the rows of those that are left: one of each in turn, while
/// there is room behind `rows` for `most`. The very first one is always there.
fn in_turn(left: &[Vec<usize>], rows: &mut usize, most: usize) -> Vec<usize> {
    let mut counts = vec![0; left.len()];
    loop {
        let mut grew = false;
        for (items, count) in left.iter().zip(&mut counts) {
            let Some(length) = items.get(*count) else { continue };
            if *rows > 0 && *rows + length > most {
                continue;
            }
            *rows += length;
            *count += 1;
            grew = true;
        }
        if !grew {
            return counts;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model_boss_engine::{EncodedForm, Histograms};
    use tokio::sync::oneshot;

    use super::super::job::TextTokens;
    use super::*;

    type Answered = oneshot::Receiver<Result<Vec<EncodedRows>, EncodeError>>;

    fn batch(left: &[Vec<usize>]) -> Vec<usize> {
        in_turn(left, &mut 0, LEAST_ROWS)
    }

    #[test]
    fn em_5_a_batch_has_texts_of_each_request_in_turn() {
        assert_eq!(batch(&[vec![10; 1_000], vec![7]]), [24, 1]);
        assert_eq!(batch(&[vec![600], vec![7]]), [1, 0], "a text longer than a batch is alone in one");
        assert_eq!(batch(&[vec![244], vec![100], vec![12]]), [1, 0, 1]);
        assert_eq!(batch(&[vec![100, 100, 100], vec![50, 50]]), [2, 1]);
        assert!(batch(&[]).is_empty());
    }

    struct QueueRig {
        queue: EncodeQueue,
        jobs: mpsc::Sender<EncodeJob>,
    }

    impl QueueRig {
        fn new() -> Self {
            let (jobs, inbox) = mpsc::channel(64);
            Self { queue: EncodeQueue::new(inbox, 0, 1), jobs }
        }

        /// A request for texts of these lengths.
        fn ask(&self, priority: u8, lengths: &[usize]) -> Answered {
            let (reply, answer) = oneshot::channel();
            let item = |length: &usize| EncodeItem::Text(TextTokens::from(vec![0; *length]));
            let items: Arc<[EncodeItem]> = lengths.iter().map(item).collect();
            let priority = Priority::new(priority).unwrap();
            let job = EncodeJob { items, form: EncodedForm::Whole, priority, meter: None, reply };
            assert!(self.jobs.try_send(job).is_ok());
            answer
        }

        fn next(&mut self) -> EncodeBatch {
            self.queue.next_batch(&Activity::new(Histograms::default())).unwrap()
        }

        fn finish(&mut self, batch: &EncodeBatch) {
            let rows = batch.parts.iter().flat_map(|part| part.range.clone().map(|at| vec![vec![at as f32]]));
            self.queue.finish(batch, Ok(rows.collect())).unwrap();
        }
    }

    /// The requests of a batch, each with its number of items.
    fn counts(batch: &EncodeBatch) -> Vec<(u64, usize)> {
        batch.parts.iter().map(|part| (part.job, part.range.len())).collect()
    }

    #[test]
    fn em_5_the_most_important_come_first_and_nobody_waits_for_ever() {
        let mut rig = QueueRig::new();
        let _bulk = rig.ask(8, &[100; 50]);
        let mut important = rig.ask(2, &[100; 24]);
        for turn in 0..12 {
            let batch = rig.next();
            // The least important request has every ninth batch.
            let wanted: &[(u64, usize)] = if turn == 8 { &[(0, 2)] } else { &[(1, 2)] };
            assert_eq!(counts(&batch), wanted, "{turn}");
            rig.finish(&batch);
        }
        assert!(important.try_recv().is_err());
        let batch = rig.next();
        assert_eq!(counts(&batch), [(1, 2)]);
        rig.finish(&batch);
        let rows = important.try_recv().unwrap().unwrap();
        assert!(rows.len() == 24 && rows.iter().enumerate().all(|(at, rows)| rows == &[[at as f32]]));
        // Room that is left is for the others.
        let _few = rig.ask(2, &[150]);
        let batch = rig.next();
        assert_eq!(counts(&batch), [(2, 1), (0, 1)]);
    }

    #[test]
    fn em_5_short_requests_go_before_long_ones_and_these_have_their_turn() {
        let mut rig = QueueRig::new();
        let _bulk = rig.ask(5, &[100; 50]);
        let mut alone = 0;
        for _ in 0..27 {
            let _short = rig.ask(5, &[9]);
            let batch = rig.next();
            let has_bulk = counts(&batch).iter().any(|(job, _)| *job == 0);
            assert!(has_bulk || batch.parts.len() == 1);
            alone += usize::from(!has_bulk);
            if has_bulk {
                let late = rig.ask(5, &[9]);
                let urgent = rig.queue.urgent_batch(&batch).unwrap();
                assert_eq!(urgent.parts.len(), 1, "the long one pauses in its own turn, too");
                rig.finish(&urgent);
                drop(late);
            }
            rig.finish(&batch);
        }
        assert_eq!(alone, 24);
    }

    #[test]
    fn em_5_short_requests_go_before_a_batch_that_is_being_computed() {
        let mut rig = QueueRig::new();
        let mut bulk = rig.ask(5, &[64; 8]);
        let running = rig.next();
        assert_eq!(counts(&running), [(0, 4)]);
        assert!(rig.queue.urgent_batch(&running).is_none());
        let (_long, mut short, _less) = (rig.ask(5, &[70]), rig.ask(5, &[10, 20]), rig.ask(6, &[5]));
        let mut important = rig.ask(4, &[150, 150]);
        let urgent = rig.queue.urgent_batch(&running).unwrap();
        assert_eq!(counts(&urgent), [(4, 1), (2, 2)]);
        assert!(rig.queue.urgent_batch(&running).is_none(), "they are being computed");
        rig.finish(&urgent);
        assert_eq!(short.try_recv().unwrap().unwrap().len(), 2);
        let urgent = rig.queue.urgent_batch(&running).unwrap();
        assert_eq!(counts(&urgent), [(4, 1)]);
        rig.finish(&urgent);
        assert_eq!(important.try_recv().unwrap().unwrap(), [[[0.0]], [[1.0]]]);
        rig.finish(&running);
        let batch = rig.next();
        assert_eq!(counts(&batch), [(0, 2), (1, 1), (3, 1)]);
        rig.finish(&batch);
        let batch = rig.next();
        rig.finish(&batch);
        assert_eq!(bulk.try_recv().unwrap().unwrap().len(), 8);
    }

    #[test]
    fn em_5_requests_whose_clients_are_gone_are_dropped_and_failures_are_told() {
        let mut rig = QueueRig::new();
        drop(rig.ask(5, &[9]));
        let mut failing = rig.ask(5, &[9]);
        let batch = rig.next();
        assert_eq!(counts(&batch), [(1, 1)]);
        let mut other = rig.ask(5, &[8]);
        rig.queue.finish(&batch, Err(DecoderError::Step("no".to_owned()))).unwrap();
        assert_eq!(failing.try_recv().unwrap(), Err(EncodeError::Step("the step failed: no".to_owned())));
        let batch = rig.next();
        rig.finish(&batch);
        assert!(other.try_recv().unwrap().is_ok());
        let _last = rig.ask(5, &[8]);
        let batch = rig.next();
        assert!(rig.queue.finish(&batch, Err(DecoderError::Fatal("gone".to_owned()))).is_err());
    }
}
