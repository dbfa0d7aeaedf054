//! Jobs as senders see them: one, or a page of a list.

use std::sync::Arc;

use model_boss_jobs::{JobId, page_of};
use model_boss_protocol::ApiError;
use tokio::time::Instant;

use super::desk::Jobs;
use super::inner::may_see;
use super::progress::progress_of;
use super::view::{JobObject, JobStatus, ListedJobs, QueueReason};
use crate::keys::RequestSender;

/// Which jobs a list shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobFilter {
    pub(crate) states: Vec<JobStatus>,
    /// The route.
    pub(crate) endpoint: Option<String>,
    /// The job before the page.
    pub(crate) after: Option<String>,
    pub(crate) limit: usize,
}

impl Jobs {
    /// A job that this sender may see, with the reason for which it waits.
    pub(crate) async fn show(&self, sender: &RequestSender, id: &JobId) -> Result<(JobObject, u64), ApiError> {
        let entry = self.get(sender, id)?;
        let (view, request, worker) = {
            let book = self.book();
            let view = JobObject::of(&entry, book.runs.get(id), book.table.before(id));
            (view.kept_for(self.settings.keep), book.request_of(id), book.worker_of(id))
        };
        let worked = match &worker {
            Some(worker) => progress_of(worker, id).await,
            None => None,
        };
        let why = match request {
            Some(request) => {
                self.scheduling.view(move |scheduler, now| QueueReason::of(scheduler, now, request)).await.flatten()
            }
            None => None,
        };
        Ok((view.waiting(why).worked(worked), entry.revision))
    }

    /// A job once it has ended, or as it is when the time is over.
    pub(crate) async fn show_ended(
        self: &Arc<Self>,
        sender: &RequestSender,
        id: &JobId,
        until: Instant,
    ) -> Result<JobObject, ApiError> {
        loop {
            let (view, revision) = self.show(sender, id).await?;
            if view.has_ended() || Instant::now() >= until || self.draining.is_cancelled() {
                return Ok(view);
            }
            self.changed_since(id, revision, until).await;
        }
    }

    /// A page of the jobs that this sender may see, the newest first.
    pub(crate) fn list(&self, sender: &RequestSender, filter: &JobFilter) -> Result<ListedJobs, ApiError> {
        self.ready()?;
        let book = self.book();
        let shown = |entry: &&model_boss_jobs::TableEntry| {
            let is_of = filter.endpoint.as_ref().is_none_or(|endpoint| *endpoint == entry.record.endpoint);
            is_of && may_see(sender, &entry.record.owner) && {
                let state = || JobObject::of(entry, book.runs.get(&entry.record.id), None).state();
                filter.states.is_empty() || filter.states.contains(&state())
            }
        };
        let jobs = book.table.newest_first().filter(shown);
        let page = page_of(jobs, |entry| entry.record.id.as_str(), filter.after.as_deref(), filter.limit);
        let view = |entry: &&model_boss_jobs::TableEntry| {
            let id = &entry.record.id;
            JobObject::of(entry, book.runs.get(id), None).kept_for(self.settings.keep)
        };
        let data: Vec<JobObject> = page.records.iter().map(view).collect();
        Ok(ListedJobs {
            object: "list",
            first_id: data.first().map(|job| job.id().to_owned()),
            last_id: data.last().map(|job| job.id().to_owned()),
            has_more: page.has_more,
            data,
        })
    }
}
