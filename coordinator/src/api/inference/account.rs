//! The metrics of one request, counted exactly once however it ends.

use std::sync::Arc;
use std::time::Duration;

use model_boss_protocol::{ApiError, ModelId};
use model_boss_traces::{AnswerFacts, RequestTrace};
use tokio::time::Instant;

use super::allowance::TokenMeter;
use crate::metrics::{Metrics, ModelMetrics, RequestUsage};
use crate::scheduling::{Destination, Dispatched};

/// nginx's status for "the client closed the connection": no client receives it, only counters show it.
const CLIENT_GONE: u16 = 499;

/// The open account of one request. Dropping it closes it.
pub(crate) struct Account {
    metrics: Arc<Metrics>,
    handles: Arc<ModelMetrics>,
    model: Option<ModelId>,
    arrived: Instant,
    first_byte: Option<Instant>,
    status: u16,
    usage: Option<RequestUsage>,
    meter: Option<TokenMeter>,
    /// The pieces of a stream that were passed on.
    pieces: u64,
    trace: RequestTrace,
}

impl Account {
    /// Opens the account of a request for `model`, if the catalog has it.
    pub(crate) fn open(metrics: &Arc<Metrics>, model: Option<&ModelId>) -> Self {
        Self {
            handles: metrics.model(model),
            metrics: Arc::clone(metrics),
            model: model.cloned(),
            arrived: Instant::now(),
            first_byte: None,
            status: CLIENT_GONE,
            usage: None,
            meter: None,
            pieces: 0,
            trace: RequestTrace::default(),
        }
    }

    /// The same account, whose tokens count for a client with a limit.
    pub(crate) fn metered(mut self, meter: Option<TokenMeter>) -> Self {
        self.meter = meter;
        self
    }

    /// The same account, with which the trace of the request ends.
    pub(crate) fn traced(mut self, trace: RequestTrace) -> Self {
        self.trace = trace;
        self
    }

    /// Records that the request ends with this error.
    pub(crate) fn failed(&mut self, error: &ApiError) {
        self.status = error.status();
        self.trace.failed(error.code.as_str());
    }

    /// Records that a piece of a stream was passed on.
    pub(crate) fn piece(&mut self) {
        self.pieces += 1;
    }

    /// Records that the request got a worker.
    pub(crate) fn dispatched(&mut self, dispatched: &Dispatched) {
        match &dispatched.place {
            Destination::Worker { worker, .. } if self.model.as_ref() != Some(&worker.model) => {
                self.model = Some(worker.model.clone());
                self.handles = self.metrics.model(self.model.as_ref());
            }
            Destination::Worker { .. } => {}
            Destination::Cloud { provider, .. } => {
                self.model = Some(ModelId::from(dispatched.place.served().as_str()));
                // Clients choose the names of a provider's models, so they cannot be labels.
                self.handles = self.metrics.provider(provider);
            }
        }
        self.handles.queued(dispatched.queued);
    }

    /// Records the time of a stream's first byte.
    pub(crate) fn first_byte(&mut self) {
        self.first_byte = Some(Instant::now());
    }

    /// Records that the answer was sent to its end with this status.
    pub(crate) fn status(&mut self, status: u16) {
        self.status = status;
    }

    /// Records the answer's own report of its usage. Times measured here, at the client's side of the stream, replace
    /// the worker's.
    pub(crate) fn used(&mut self, usage: Option<RequestUsage>) {
        let Some(mut usage) = usage else { return };
        if let Some(first) = self.first_byte {
            usage.first_token = Some(first.duration_since(self.arrived));
            let gaps = u32::try_from(usage.completion_tokens.saturating_sub(1)).unwrap_or(u32::MAX);
            usage.per_token = first.elapsed().checked_div(gaps);
        } else if let (Some(own), Some(per_token)) = (usage.first_token, usage.per_token) {
            // Prefill takes the whole time but that of the tokens after the first.
            let rest = per_token.saturating_mul(u32::try_from(usage.completion_tokens).unwrap_or(u32::MAX));
            usage.first_token = Some(own.max(self.arrived.elapsed().saturating_sub(rest)));
        }
        self.usage = Some(usage);
    }

    /// Tokens of prompt and answer, if the answer counted them.
    pub(crate) fn tokens(&self) -> Option<u64> {
        self.usage.as_ref().map(|usage| usage.prompt_tokens.saturating_add(usage.completion_tokens))
    }

    /// The time since the request arrived.
    pub(crate) fn age(&self) -> Duration {
        self.arrived.elapsed()
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        match (&self.meter, self.tokens()) {
            (Some(meter), Some(tokens)) => meter.count(tokens),
            // The client has left before the answer told its tokens, or the answer broke off.
            (Some(meter), None) if self.first_byte.is_some() => meter.count_part(self.pieces),
            _ => {}
        }
        if let (Some(model), Some(usage)) = (&self.model, &self.usage) {
            self.metrics.used(model, &self.handles, usage);
        }
        self.metrics.answered(&self.handles, self.status, self.age());
        if self.trace.is_on() {
            let usage = self.usage.unwrap_or_default();
            let facts = AnswerFacts {
                tokens: self.usage.map(|usage| (usage.prompt_tokens, usage.completion_tokens)),
                cached: usage.cached_tokens,
                worked: usage.worked,
                since_first_byte: self.first_byte.map(|first| first.elapsed()),
            };
            self.trace.finish(self.status, &facts);
        }
    }
}
