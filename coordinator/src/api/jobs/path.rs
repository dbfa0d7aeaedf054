//! Ids and their verbs in paths, and the times that queries name.

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use model_boss_host::clocks::in_a;
use model_boss_http::path::{parameter, percent_decode};
use model_boss_protocol::{ApiError, ErrorCode, parse_span, span_of_secs};
use tokio::time::Instant;

use crate::api::route::Call;

/// The longest wait of one request.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// The same call, once the records of jobs were read.
pub(super) async fn opened(call: Call) -> Call {
    let jobs = Arc::clone(&call.context.jobs);
    jobs.opened().await;
    call
}

/// An id in a path, and the verb behind it; empty without one.
pub(super) struct NamedPath {
    pub(super) id: String,
    pub(super) verb: String,
}

impl NamedPath {
    /// The id behind this part of the path.
    pub(super) fn of(target: &Uri, root: &str) -> Self {
        let (_, rest) = target.path().split_once(root).unwrap_or_default();
        let (id, verb) = rest.split_once('/').unwrap_or((rest, ""));
        Self { id: percent_decode(id).unwrap_or_default(), verb: verb.to_owned() }
    }

    /// The error for a verb that does not exist.
    pub(super) fn no_such_route(&self, what: &str) -> ApiError {
        ApiError::new(ErrorCode::NotFound, format!("a {what} has no '{}'", self.verb))
    }
}

/// The moment until which the client wants to wait; `None` where it does not.
pub(super) fn wait_until(target: &Uri) -> Result<Option<Instant>, ApiError> {
    let Some(text) = parameter(target, "wait") else { return Ok(None) };
    let span = match text.parse::<f64>() {
        Ok(seconds) => span_of_secs(seconds),
        Err(_) if text.is_empty() || text == "true" => Ok(Duration::from_secs(30)),
        Err(_) => parse_span(&text),
    };
    let span = span.map_err(|error| ApiError::invalid("wait", format!("'wait': {error}")))?;
    if span > LONGEST_WAIT {
        return Err(ApiError::invalid(
            "wait",
            format!("'wait' may be at most {} s; ask again", LONGEST_WAIT.as_secs()),
        ));
    }
    Ok(Some(in_a(span)))
}
