//! One line of a batch on its way: it is sent until it has an answer.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use model_boss_jobs::{BatchRecord, BatchRules, BatchUsage, LineOutcome, output_line, read_line};
use model_boss_protocol::{ApiError, ErrorSource, Priority};
use serde_json::value::RawValue;
use tokio::time::sleep;

use super::desk::{Jobs, on_disk};
use super::gathered::gathered;
use super::inner::{InnerRequest, send};
use crate::scheduling::BackgroundRun;

/// The pause before work on a batch that failed is tried again: a line, a write, or the batch.
pub(super) const AGAIN: Duration = Duration::from_millis(500);
/// The longest pause before a refused line is sent again.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The header of a request's client.
const CLIENT: &str = "x-client-id";

/// A line with what came of it.
pub(super) struct AnsweredLine {
    pub(super) text: Vec<u8>,
    pub(super) is_error: bool,
    pub(super) number: u32,
    pub(super) usage: BatchUsage,
}

/// One line that is being answered.
pub(super) struct BatchLine {
    pub(super) jobs: Arc<Jobs>,
    pub(super) record: BatchRecord,
    pub(super) input: Arc<File>,
    pub(super) rules: Arc<BatchRules>,
    pub(super) spot: (u64, u32),
    pub(super) number: u32,
}

/// The result of one request of a line.
enum LineStep {
    Done(AnsweredLine),
    /// There was no room, or a limit was reached.
    Again(Duration),
}

impl BatchLine {
    /// Sends the line until it has an answer.
    pub(super) async fn answer(self) -> Result<AnsweredLine, ApiError> {
        let (offset, length) = self.spot;
        let input = Arc::clone(&self.input);
        let text = on_disk(move || {
            let mut text = vec![0; usize::try_from(length).unwrap_or(0)];
            input.read_exact_at(&mut text, offset)?;
            Ok(text)
        })
        .await?;
        let (custom_id, body) = match read_line(&text, &self.rules) {
            Ok(line) => (line.custom_id, Bytes::copy_from_slice(line.body.get().as_bytes())),
            Err(fault) => {
                let message = format!("line {}: {}", self.number.saturating_add(1), fault.message);
                return Err(ApiError::new(model_boss_protocol::ErrorCode::Internal, message));
            }
        };
        drop(text);
        let mut tries = 0_u32;
        let answered = loop {
            match self.ask(&custom_id, body.clone(), tries).await {
                LineStep::Done(answered) => break answered,
                LineStep::Again(pause) => sleep(pause).await,
            }
            tries = tries.saturating_add(1);
        };
        Ok(answered)
    }

    async fn ask(&self, custom_id: &str, body: Bytes, tries: u32) -> LineStep {
        let id = line_id(&self.record.id, self.number);
        let sender = match self.jobs.keys.sender_of(&self.record.owner) {
            Ok(sender) => sender,
            Err(error) => {
                let outcome = LineOutcome::Unanswered { code: error.code.as_str(), message: &error.message };
                return LineStep::Done(AnsweredLine {
                    text: output_line(&id, custom_id, &outcome),
                    is_error: true,
                    number: self.number,
                    usage: BatchUsage::default(),
                });
            }
        };
        let client = Some(self.record.owner.client.clone()).filter(|name| name != model_boss_http::peek::ANONYMOUS);
        let inner = InnerRequest {
            id: id.clone(),
            endpoint: self.record.endpoint.clone(),
            content_type: "application/json".to_owned(),
            headers: client.map(|client| (CLIENT.to_owned(), client)).into_iter().collect(),
            body: Body::from(body),
            sender,
        };
        let Some(router) = self.jobs.router.get().cloned() else { return LineStep::Again(AGAIN) };
        let run = BackgroundRun::new(Some(Priority::LOWEST));
        let answered = run.scope(Box::pin(async {
            let response = send(router, inner).await?;
            Ok::<_, ApiError>(gathered(response).await)
        }));
        let (status, again, text) = match answered.await {
            Ok(answered) => answered,
            Err(error) => {
                (error.status(), error.retry_after, error.body(ErrorSource::Coordinator).to_json().into_bytes())
            }
        };
        let crashed = status == 502 && (tries as usize) < self.jobs.settings.crashes;
        if matches!(status, 429 | 503) || crashed {
            let pause = again.unwrap_or_else(|| Duration::from_secs(1 << tries.min(6)));
            return LineStep::Again(pause.clamp(AGAIN, LONGEST_PAUSE));
        }
        let body = String::from_utf8(text).ok().and_then(|text| RawValue::from_string(text).ok());
        let outcome = match &body {
            Some(body) => LineOutcome::Answered { status, request_id: &id, body },
            None => LineOutcome::Unanswered { code: "invalid_answer", message: "the answer is not JSON" },
        };
        let is_error = body.is_none() || status >= 400;
        let usage = body.as_ref().map_or_else(BatchUsage::default, |body| BatchUsage::of_answer(body.get()));
        let text = output_line(&id, custom_id, &outcome);
        LineStep::Done(AnsweredLine { text, is_error, number: self.number, usage })
    }
}

/// The id of a line's request.
pub(super) fn line_id(batch: &str, number: u32) -> String {
    format!("batch_req_{}_{number}", batch.strip_prefix("batch_").unwrap_or(batch))
}
