//! `/v1/batches`, as OpenAI's API has them.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::response::Response;
use model_boss_http::body::json;
use model_boss_protocol::{ApiError, parse_span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::files::KEPT_SECONDS;
use super::page::PageQuery;
use super::path::{NamedPath, opened};
use crate::api::route::Call;
use crate::jobs::{BatchObject, BatchWish, owner_of};

/// The most batches of a page.
const MOST: usize = 100;
/// The part of a path before the id.
const ROOT: &str = "/batches/";
/// The beginning of routes whose requests or answers are sound, which a line of JSON cannot hold.
const SOUND: &str = "/v1/audio/";
/// The bounds of a batch's time.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30 * 86_400);
/// The most notes, and the longest names and values of them, as OpenAI's API limits them.
const MOST_NOTES: usize = 16;
const LONGEST_NAME: usize = 64;
const LONGEST_NOTE: usize = 512;

/// A wish for a batch.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchBody {
    /// The file of lines, whose purpose is `batch`.
    input_file_id: String,
    /// The route of every line.
    endpoint: String,
    /// The time within which every line should be answered, such as `24h`.
    #[serde(default = "day")]
    completion_window: String,
    /// The client's own notes.
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
    /// The time for which the files of answers and errors are kept; without it they are kept as all files are.
    #[serde(default)]
    output_expires_after: Option<OutputExpiry>,
}

/// The end of an output file's life.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "an object with 'anchor' and 'seconds'")]
struct OutputExpiry {
    /// Always `created_at`: the time at which the file was written.
    anchor: String,
    /// From one hour to 30 days.
    seconds: u64,
}

fn day() -> String {
    "24h".to_owned()
}

/// A page of batches.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ListedBatches {
    /// Always `list`.
    object: &'static str,
    data: Vec<BatchObject>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

/// `POST /v1/batches`.
pub(crate) async fn create(call: Call) -> Result<Response, ApiError> {
    let mut call = opened(call).await;
    let body: BatchBody = call.body().await?.parse().await?;
    let BatchBody { input_file_id, endpoint, completion_window, metadata, output_expires_after } = body;
    let endpoint = endpoint.strip_prefix("/api/v1/").map_or_else(|| endpoint.clone(), |rest| format!("/v1/{rest}"));
    let described = call.description.get();
    if endpoint.starts_with(SOUND) {
        let message = format!("'{endpoint}' takes or gives sound, and a line of a batch is JSON; send each as a job");
        return Err(ApiError::invalid("endpoint", message));
    }
    if !described.is_some_and(|api| api.takes_jobs(&endpoint)) {
        let paths = described.map(|api| api.job_paths().join(", ")).unwrap_or_default();
        let shown: String = endpoint.chars().take(100).collect();
        let message = format!("there is no route '{shown}' for batches here; there are {paths}");
        return Err(ApiError::invalid("endpoint", message));
    }
    let window =
        parse_span(&completion_window).ok().filter(|window| (SHORTEST..=LONGEST).contains(window)).ok_or_else(
            || ApiError::invalid("completion_window", "'completion_window' must be from 1s to 30d, such as 24h"),
        )?;
    let metadata = metadata.unwrap_or_default();
    let is_long =
        |(name, note): (&String, &String)| name.chars().count() > LONGEST_NAME || note.chars().count() > LONGEST_NOTE;
    if metadata.len() > MOST_NOTES || metadata.iter().any(is_long) {
        let message = format!(
            "'metadata' may have {MOST_NOTES} entries, with names of {LONGEST_NAME} and texts of {LONGEST_NOTE} characters"
        );
        return Err(ApiError::invalid("metadata", message));
    }
    let output_keep = output_expires_after.map(|expiry| kept_output(&expiry)).transpose()?;
    let owner = owner_of(&call.identity, call.client()?.as_str());
    let (input_file, window_text) = (input_file_id, completion_window);
    let wish = BatchWish { owner, endpoint, input_file, window, window_text, metadata, output_keep };
    json(&call.context.jobs.accept_batch(&call.identity, wish).await?)
}

fn kept_output(expiry: &OutputExpiry) -> Result<Duration, ApiError> {
    if expiry.anchor != "created_at" {
        return Err(ApiError::invalid("output_expires_after.anchor", "'anchor' must be created_at"));
    }
    if !KEPT_SECONDS.contains(&expiry.seconds) {
        let message =
            format!("'seconds' must be a whole number from {} to {}", KEPT_SECONDS.start(), KEPT_SECONDS.end());
        return Err(ApiError::invalid("output_expires_after.seconds", message));
    }
    Ok(Duration::from_secs(expiry.seconds))
}

/// `GET /v1/batches`.
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let call = opened(call).await;
    let page = PageQuery::of(call.request.uri(), MOST)?;
    let (data, has_more) = page.cut(call.context.jobs.batches(&call.identity)?, BatchObject::id);
    json(&ListedBatches {
        object: "list",
        first_id: data.first().map(|batch| batch.id().to_owned()),
        last_id: data.last().map(|batch| batch.id().to_owned()),
        data,
        has_more,
    })
}

/// `GET /v1/batches/ID`.
pub(crate) async fn show(call: Call) -> Result<Response, ApiError> {
    let call = opened(call).await;
    let named = NamedPath::of(call.request.uri(), ROOT);
    if !named.verb.is_empty() {
        return Err(named.no_such_route("batch"));
    }
    json(&call.context.jobs.batch(&call.identity, &named.id)?)
}

/// `POST /v1/batches/ID/cancel`.
pub(crate) async fn order(call: Call) -> Result<Response, ApiError> {
    let call = opened(call).await;
    let named = NamedPath::of(call.request.uri(), ROOT);
    if named.verb != "cancel" {
        return Err(named.no_such_route("batch"));
    }
    json(&call.context.jobs.cancel_batch(&call.identity, &named.id).await?)
}
