//! The tasks that work on batches: lines are checked, answered as the least important requests, and written to the
//! batch's files. What the files have is what is answered: after a restart a batch goes on from there.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use model_boss_jobs::{
    BatchCounts, BatchRecord, BatchRules, BatchState, BatchUsage, FilePurpose, KeptKind, LineOrder, LineOutcome,
    LinePlan, StoredUpload, ValidatedInput, keep_whole_lines, output_line, read_line, scan_input,
};
use model_boss_protocol::ApiError;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::batch_line::{AGAIN, AnsweredLine, BatchLine, line_id};
use super::book::{BatchRun, has_work, put_batch, put_upload};
use super::desk::{Jobs, on_disk};
use super::gathered::LONGEST_LINE;
use super::wall::now;

/// The interval of writes to the disk itself: the lines of a lost machine's last moments are answered again.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// The time without an answer after which another model's lines are sent beside those that wait.
const STALLED: Duration = Duration::from_secs(30);

/// Why a batch's lines are no longer answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchStop {
    /// Every line is answered.
    Done,
    /// The batch was cancelled.
    Cancelled,
    /// Its time is over.
    Expired,
    /// The coordinator drains; the batch goes on at the next start.
    Draining,
}

/// A file to which whole lines are added.
struct LineFile {
    file: File,
    bytes: u64,
    lines: usize,
    /// The tokens that its answers count.
    usage: BatchUsage,
}

impl LineFile {
    /// Adds lines, all or none.
    fn append(&mut self, text: &[u8], lines: usize) -> io::Result<()> {
        if let Err(error) = self.file.write_all(text) {
            self.file.set_len(self.bytes)?;
            io::Seek::seek(&mut self.file, io::SeekFrom::Start(self.bytes))?;
            return Err(error);
        }
        self.bytes = self.bytes.saturating_add(text.len() as u64);
        self.lines = self.lines.saturating_add(lines);
        Ok(())
    }
}

/// The lines and the files of a batch.
struct OpenBatch {
    plan: LinePlan,
    input: Arc<File>,
    rules: Arc<BatchRules>,
    output: LineFile,
    errors: LineFile,
}

impl Jobs {
    /// Works on batches, a few at a time, until the coordinator drains.
    pub(super) async fn run_batches(self: Arc<Self>) {
        loop {
            loop {
                let mut book = self.book();
                if book.batch_runs.len() >= self.settings.batches.max(1) {
                    break;
                }
                let Some(id) = book.next_batch() else { break };
                let (counts, seen) = watch::channel(BatchCounts::default());
                let run = BatchRun { cancel: self.draining.child_token(), counts: seen };
                book.batch_runs.insert(id.clone(), run.clone());
                drop(book);
                let jobs = Arc::clone(&self);
                tokio::spawn(async move {
                    if let Err(error) = jobs.work_on(&id, &run.cancel, &counts).await {
                        jobs.state.trouble(&jobs.folder.beside("batches"), error.message);
                        sleep(AGAIN).await;
                    } else {
                        jobs.state.well(&jobs.folder.beside("batches"));
                    }
                    jobs.book().batch_runs.remove(&id);
                    jobs.batch_changed(&id);
                    jobs.wake_batches.notify_one();
                });
            }
            tokio::select! {
                () = self.wake_batches.notified() => {}
                () = self.draining.cancelled() => return,
            }
        }
    }

    /// Brings a batch to its end, or as far as it comes before a drain. An error means that the disk or the store
    /// failed: the batch is begun again, from what its files have.
    async fn work_on(
        self: &Arc<Self>,
        id: &str,
        cancel: &CancellationToken,
        counts: &watch::Sender<BatchCounts>,
    ) -> Result<(), ApiError> {
        let Some(record) = self.book().batches.get(id).cloned() else { return Ok(()) };
        let opened = match self.open_batch(&record).await? {
            Ok(opened) => opened,
            Err(faults) => {
                return self.end_batch(id, BatchState::Failed, None, |record| record.errors = faults).await;
            }
        };
        let mut opened = opened;
        counts.send_replace(opened.counts());
        if let Some(kept) = self.book().batches.get_mut(id) {
            kept.model = opened.plan.only_model().map(str::to_owned);
        }
        if has_work(record.state) {
            self.enter_state(id, BatchState::InProgress).await?;
        }
        let stop = match has_work(self.state_of(id)) {
            true => self.answer_lines(&record, &mut opened, cancel, counts).await?,
            false if self.state_of(id) == BatchState::Cancelling => BatchStop::Cancelled,
            false => BatchStop::Done,
        };
        let stop = match stop {
            BatchStop::Draining if self.state_of(id) == BatchState::Cancelling => BatchStop::Cancelled,
            BatchStop::Draining => return Ok(()),
            stop => stop,
        };
        let end = match stop {
            BatchStop::Cancelled => BatchState::Cancelled,
            BatchStop::Expired => BatchState::Expired,
            BatchStop::Done | BatchStop::Draining => BatchState::Completed,
        };
        if stop == BatchStop::Expired {
            opened = self.expire_rest(&record, opened).await?;
            counts.send_replace(opened.counts());
        }
        if end != BatchState::Cancelled {
            self.enter_state(id, BatchState::Finalizing).await?;
        }
        self.end_batch(id, end, Some(opened), |_| {}).await
    }

    fn state_of(&self, id: &str) -> BatchState {
        self.book().batches.get(id).map_or(BatchState::Cancelled, |batch| batch.state)
    }

    /// Checks the lines, and finds those that are answered already. The inner error has the faults of the lines.
    async fn open_batch(
        &self,
        record: &BatchRecord,
    ) -> Result<Result<OpenBatch, Vec<model_boss_jobs::BatchLineError>>, ApiError> {
        let (folder, record, lines) = (self.folder.clone(), record.clone(), self.settings.batch_lines);
        on_disk(move || {
            let rules = BatchRules { endpoint: record.endpoint.clone(), lines, line_bytes: LONGEST_LINE };
            let input = folder.read(KeptKind::Upload, &record.input_file)?;
            let mut plan = match scan_input(BufReader::new(&input), &rules)? {
                ValidatedInput::Good(plan) => plan,
                ValidatedInput::Bad(faults) => return Ok(Err(faults)),
            };
            let mut reopen = |name: &str| {
                let mut file = folder.append(KeptKind::Upload, name)?;
                let kept = keep_whole_lines(&mut file, 2 * LONGEST_LINE, |custom_id| plan.done(custom_id))?;
                io::Result::Ok(LineFile { file, bytes: kept.bytes, lines: kept.lines, usage: kept.usage })
            };
            let (output, errors) = (reopen(&record.output_file)?, reopen(&record.error_file)?);
            folder.sync(KeptKind::Upload)?;
            Ok(Ok(OpenBatch { plan, input: Arc::new(input), rules: Arc::new(rules), output, errors }))
        })
        .await
    }

    /// Answers the lines that are not answered, those of one model after those of another.
    async fn answer_lines(
        self: &Arc<Self>,
        record: &BatchRecord,
        opened: &mut OpenBatch,
        cancel: &CancellationToken,
        counts: &watch::Sender<BatchCounts>,
    ) -> Result<BatchStop, ApiError> {
        let mut lines: JoinSet<Result<AnsweredLine, ApiError>> = JoinSet::new();
        let open = opened.plan.open_by_model().into_iter().map(|index| (index, opened.plan.model_of(index)));
        let mut order = LineOrder::new(open, self.settings.batch_in_flight / self.settings.batches.max(1));
        let mut syncs = tokio::time::interval(SYNC_EVERY);
        let until_expiry = record.expires.since(now());
        let expiry = sleep(until_expiry);
        tokio::pin!(expiry);
        let stall = sleep(STALLED);
        tokio::pin!(stall);
        loop {
            while let Some(index) = order.send() {
                let Some(spot) = usize::try_from(index).ok().and_then(|index| opened.plan.spot(index)) else {
                    continue;
                };
                let line = BatchLine {
                    jobs: Arc::clone(self),
                    record: record.clone(),
                    input: Arc::clone(&opened.input),
                    rules: Arc::clone(&opened.rules),
                    spot: (spot.offset, spot.length),
                    number: index,
                };
                lines.spawn(line.answer());
            }
            if lines.is_empty() && !order.has_more() {
                return Ok(BatchStop::Done);
            }
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Ok(BatchStop::Draining),
                () = &mut expiry => return Ok(BatchStop::Expired),
                Some(first) = lines.join_next() => {
                    let mut answered = vec![first];
                    while let Some(more) = lines.try_join_next() {
                        answered.push(more);
                    }
                    // A task that panicked is a fault of this program, after which the batch is begun again.
                    let answered: Vec<AnsweredLine> = answered
                        .into_iter()
                        .map(|line| line.unwrap_or_else(|_| Err(model_boss_http::error::panic_error())))
                        .collect::<Result<_, _>>()?;
                    for line in &answered {
                        order.answered(opened.plan.model_of(line.number));
                    }
                    stall.set(sleep(STALLED));
                    self.write_lines(opened, answered).await?;
                    counts.send_replace(opened.counts());
                    self.revision.send_modify(|revision| *revision = revision.wrapping_add(1));
                }
                () = &mut stall => {
                    // Its lines wait on, beside those of the next model.
                    order.pass_on();
                    stall.set(sleep(STALLED));
                }
                _ = syncs.tick() => opened.sync().await?,
            }
        }
    }

    /// Writes lines; while the disk is full, it waits.
    async fn write_lines(&self, opened: &mut OpenBatch, answered: Vec<AnsweredLine>) -> Result<(), ApiError> {
        let gathered = |is_error: bool| {
            let those = answered.iter().filter(|line| line.is_error == is_error);
            let lines = those.clone().count();
            (those.flat_map(|line| line.text.iter().copied()).collect::<Vec<u8>>(), lines)
        };
        let (good, bad) = (gathered(false), gathered(true));
        for ((text, lines), file) in [(good, &mut opened.output), (bad, &mut opened.errors)] {
            while lines > 0
                && let Err(error) = file.append(&text, lines)
            {
                self.state.trouble(&self.folder.beside("batches"), error.to_string());
                if self.draining.is_cancelled() {
                    return Err(crate::refusals::of_job_disk(&error));
                }
                sleep(AGAIN).await;
            }
        }
        for line in answered.iter().filter(|line| !line.is_error) {
            opened.output.usage.add(line.usage);
        }
        self.state.well(&self.folder.beside("batches"));
        Ok(())
    }

    /// Writes an error for each line that is not answered.
    async fn expire_rest(&self, record: &BatchRecord, mut opened: OpenBatch) -> Result<OpenBatch, ApiError> {
        let id = record.id.clone();
        on_disk(move || {
            // Lines that were written after the plan was made are marked in it by reading the files once more.
            for file in [&mut opened.output, &mut opened.errors] {
                let plan = &mut opened.plan;
                let kept = keep_whole_lines(&mut file.file, 2 * LONGEST_LINE, |custom_id| {
                    plan.done(custom_id);
                    true
                })?;
                (file.bytes, file.lines, file.usage) = (kept.bytes, kept.lines, kept.usage);
            }
            for index in opened.plan.open_by_model() {
                let Some(spot) = usize::try_from(index).ok().and_then(|index| opened.plan.spot(index)) else {
                    continue;
                };
                let mut text = vec![0; usize::try_from(spot.length).unwrap_or(0)];
                opened.input.read_exact_at(&mut text, spot.offset)?;
                let custom_id = read_line(&text, &opened.rules).map(|line| line.custom_id).unwrap_or_default();
                let message = "the batch's completion_window was over before the line was answered";
                let outcome = LineOutcome::Unanswered { code: "batch_expired", message };
                opened.errors.append(&output_line(&line_id(&id, index), &custom_id, &outcome), 1)?;
            }
            Ok(opened)
        })
        .await
    }

    /// Enters the last state, together with the records of the batch's files.
    async fn end_batch(
        self: &Arc<Self>,
        id: &str,
        state: BatchState,
        opened: Option<OpenBatch>,
        change: impl FnOnce(&mut BatchRecord),
    ) -> Result<(), ApiError> {
        let Some(before) = self.book().batches.get(id).cloned() else { return Ok(()) };
        let mut record = before.clone();
        if !record.enter(state, now()) {
            return Ok(());
        }
        change(&mut record);
        let mut uploads = Vec::new();
        if let Some(mut opened) = opened {
            opened.sync().await?;
            let at = now();
            record.counts = opened.counts();
            (record.has_output, record.has_errors) = (opened.output.lines > 0, opened.errors.lines > 0);
            let names =
                [(&record.output_file, &opened.output, "output"), (&record.error_file, &opened.errors, "error")];
            for (name, file, what) in names.into_iter().filter(|(_, file, _)| file.lines > 0) {
                uploads.push(StoredUpload {
                    id: name.clone(),
                    owner: record.owner.clone(),
                    filename: format!("{id}_{what}.jsonl"),
                    purpose: FilePurpose::BatchOutput,
                    bytes: file.bytes,
                    created: at,
                    expires: record.output_keep.map(|seconds| at.after(Duration::from_secs(seconds))),
                });
            }
        }
        let mut changes = vec![put_batch(&record)];
        changes.extend(uploads.iter().map(put_upload));
        let mut undo = vec![put_batch(&before)];
        undo.extend(uploads.iter().map(|upload| super::book::delete(super::book::UPLOAD, &upload.id)));
        self.journal.commit(changes, undo).await?;
        let names = [(record.output_file.clone(), record.has_output), (record.error_file.clone(), record.has_errors)];
        {
            let mut book = self.book();
            book.uploads.extend(uploads.into_iter().map(|upload| (upload.id.clone(), upload)));
            book.batches.insert(record.id.clone(), record);
        }
        for (name, has_lines) in names {
            if !has_lines {
                self.remove_file(KeptKind::Upload, name);
            }
        }
        Ok(())
    }
}

impl OpenBatch {
    fn counts(&self) -> BatchCounts {
        let (completed, failed, usage) = (self.output.lines, self.errors.lines, self.output.usage);
        BatchCounts { total: self.plan.total(), completed, failed, usage }
    }

    /// Brings what was written to the disk itself.
    async fn sync(&mut self) -> Result<(), ApiError> {
        let files = [self.output.file.try_clone(), self.errors.file.try_clone()];
        on_disk(move || files.into_iter().try_for_each(|file| file?.sync_data())).await
    }
}
