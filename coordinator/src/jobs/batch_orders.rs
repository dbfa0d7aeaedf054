//! Orders about batches: one is accepted, shown, cancelled and forgotten.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model_boss_jobs::{BatchCounts, BatchOrder, BatchRecord, BatchState, FilePurpose, JobOwner, drawn_name};
use model_boss_protocol::{ApiError, ErrorCode};

use super::batch_view::BatchObject;
use super::book::{BATCH, delete, put_batch};
use super::desk::Jobs;
use super::inner::may_see;
use super::uploads::no_random_numbers;
use super::wall::now;
use crate::keys::RequestSender;

/// A wish for a batch, whose route was checked.
pub(crate) struct BatchWish {
    pub(crate) owner: JobOwner,
    pub(crate) endpoint: String,
    pub(crate) input_file: String,
    pub(crate) window: Duration,
    pub(crate) window_text: String,
    pub(crate) metadata: BTreeMap<String, String>,
    /// The time for which the files of answers and errors are kept, where the client sets one.
    pub(crate) output_keep: Option<Duration>,
}

impl Jobs {
    /// Accepts a batch. Its lines are checked afterwards, as the state says.
    pub(crate) async fn accept_batch(
        self: &Arc<Self>,
        sender: &RequestSender,
        wish: BatchWish,
    ) -> Result<BatchObject, ApiError> {
        let input = self.upload(sender, &wish.input_file).map_err(|error| error.with_param("input_file_id"))?;
        if input.purpose != FilePurpose::Batch {
            let message = format!("the file's purpose is '{}', and must be 'batch'", input.purpose.as_str());
            return Err(ApiError::invalid("input_file_id", message));
        }
        let open = self.book().batches.values().filter(|batch| !batch.state.is_final()).count();
        if open >= self.settings.open {
            let message = format!("{open} batches wait or run, and there may be no more (jobs.open)");
            return Err(ApiError::new(ErrorCode::QueueFull, message).retry_after(Duration::from_secs(60)));
        }
        let BatchWish { owner, endpoint, input_file, window, window_text, metadata, output_keep } = wish;
        let at = now();
        let order = BatchOrder {
            id: drawn_name("batch_", at).map_err(no_random_numbers)?,
            owner,
            endpoint,
            input_file,
            output_files: (Self::new_file_name()?, Self::new_file_name()?),
            window,
            window_text,
            metadata,
            output_keep,
        };
        let record = BatchRecord::accepted(order, at);
        self.journal.commit(vec![put_batch(&record)], vec![delete(BATCH, &record.id)]).await?;
        let id = record.id.clone();
        self.book().batches.insert(id.clone(), record);
        self.batch_changed(&id);
        self.wake_batches.notify_one();
        self.batch(sender, &id)
    }

    /// A batch that this sender may see.
    pub(crate) fn batch(&self, sender: &RequestSender, id: &str) -> Result<BatchObject, ApiError> {
        self.ready()?;
        let book = self.book();
        let found = book.batches.get(id).filter(|batch| may_see(sender, &batch.owner));
        let counts = book.batch_runs.get(id).map(|run| *run.counts.borrow());
        found.map(|batch| BatchObject::of(batch, counts)).ok_or_else(|| no_batch(id))
    }

    /// The batches that this sender may see, the newest first.
    pub(crate) fn batches(&self, sender: &RequestSender) -> Result<Vec<BatchObject>, ApiError> {
        self.ready()?;
        let book = self.book();
        let counts = |id: &str| -> Option<BatchCounts> { book.batch_runs.get(id).map(|run| *run.counts.borrow()) };
        let seen = book.batches.values().rev().filter(|batch| may_see(sender, &batch.owner));
        Ok(seen.map(|batch| BatchObject::of(batch, counts(&batch.id))).collect())
    }

    /// Cancels a batch: lines in flight are ended, and what was answered is kept.
    pub(crate) async fn cancel_batch(
        self: &Arc<Self>,
        sender: &RequestSender,
        id: &str,
    ) -> Result<BatchObject, ApiError> {
        let seen = self.batch(sender, id)?;
        if seen.has_ended() {
            let message = format!("the batch has ended with the state '{}'", seen.status());
            return Err(ApiError::new(ErrorCode::InvalidRequest, message).with_status(409));
        }
        self.enter_state(id, BatchState::Cancelling).await?;
        let run = self.book().batch_runs.get(id).cloned();
        if let Some(run) = run {
            run.cancel.cancel();
        }
        self.wake_batches.notify_one();
        self.batch(sender, id)
    }

    /// Enters a state, kept before anybody sees it. Returns whether the batch could enter it.
    pub(super) async fn enter_state(self: &Arc<Self>, id: &str, state: BatchState) -> Result<bool, ApiError> {
        let Some(before) = self.book().batches.get(id).cloned() else { return Ok(false) };
        let mut record = before.clone();
        if !record.enter(state, now()) {
            return Ok(false);
        }
        self.journal.commit(vec![put_batch(&record)], vec![put_batch(&before)]).await?;
        let mut book = self.book();
        let Some(kept) = book.batches.get_mut(id) else { return Ok(false) };
        *kept = record;
        drop(book);
        self.batch_changed(id);
        Ok(true)
    }

    pub(super) async fn forget_batch(self: &Arc<Self>, id: &str) -> Result<(), ApiError> {
        let Some(record) = self.book().batches.get(id).cloned() else { return Ok(()) };
        for file in [&record.output_file, &record.error_file] {
            self.forget_upload(file).await?;
        }
        self.journal.commit(vec![delete(BATCH, id)], vec![put_batch(&record)]).await?;
        self.book().batches.remove(id);
        (self.on_change)("batch", serde_json::json!({ "id": id, "gone": true }));
        Ok(())
    }

    /// Tells everybody of a change of a batch.
    pub(super) fn batch_changed(&self, id: &str) {
        let view = {
            let book = self.book();
            let counts = book.batch_runs.get(id).map(|run| *run.counts.borrow());
            book.batches.get(id).map(|batch| BatchObject::of(batch, counts))
        };
        self.revision.send_modify(|revision| *revision = revision.wrapping_add(1));
        if let Some(view) = view {
            (self.on_change)("batch", serde_json::json!(view));
        }
    }
}

fn no_batch(id: &str) -> ApiError {
    let shown: String = id.chars().take(80).collect();
    ApiError::new(ErrorCode::BatchNotFound, format!("there is no batch '{shown}'; GET /v1/batches lists them"))
}
