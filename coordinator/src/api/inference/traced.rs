//! The facts that the trace of a request shows of its way to an answer.

use std::pin::pin;
use std::time::Duration;

use model_boss_protocol::ApiError;
use model_boss_traces::{PlaceFacts, RequestTrace};
use tokio::time::sleep;

use super::forward::Forward;
use crate::scheduling::{Destination, Dispatched, Ticket};

/// The error of a call whose worker gave no answer.
pub(crate) const LOST: &str = "worker_lost";

/// How often a waiting request's reason is looked at for its trace.
const LOOK: Duration = Duration::from_secs(1);

/// The name of this project's own workers among providers.
const OWN: &str = "model_boss";

/// Waits for the request's turn. A trace that is seen by somebody notes the reasons meanwhile.
pub(crate) async fn turn(ticket: &mut Ticket, trace: &RequestTrace) -> Result<Dispatched, ApiError> {
    trace.queued();
    if !trace.is_recording() {
        return ticket.dispatched().await;
    }
    let mut noted = None;
    loop {
        let look = ticket.why();
        let mut verdict = pin!(ticket.dispatched());
        let reason = tokio::select! {
            biased;
            dispatched = &mut verdict => return dispatched,
            reason = look => reason,
        };
        if let Some(reason) = reason.filter(|reason| noted != Some(reason.word())) {
            noted = Some(reason.word());
            trace.waits(reason.word(), reason.to_string());
        }
        tokio::select! {
            biased;
            dispatched = &mut verdict => return dispatched,
            () = sleep(LOOK) => {}
        }
    }
}

/// Notes the place that is to answer.
pub(crate) fn placed(forward: &Forward, dispatched: &Dispatched) {
    if !forward.trace.is_on() {
        return;
    }
    let Dispatched { place, rung, loading, .. } = dispatched;
    let (provider, devices, priority) = match place {
        Destination::Worker { worker, priority } if worker.backend.is_foreign() => {
            (worker.backend.as_str().to_owned().into(), worker.devices.clone(), Some(priority.number()))
        }
        Destination::Worker { worker, priority } => (OWN.into(), worker.devices.clone(), Some(priority.number())),
        Destination::Cloud { provider, .. } if forward.cloud.clouds.is_anthropic(provider) => {
            ("anthropic".into(), String::new(), None)
        }
        Destination::Cloud { provider, .. } => (provider.clone().into(), String::new(), None),
    };
    forward.trace.placed(PlaceFacts {
        model: place.served(),
        provider,
        is_local: matches!(place, Destination::Worker { .. }),
        devices,
        priority,
        rung: i64::try_from(rung.position).unwrap_or(i64::MAX),
        rung_reason: rung.reason.to_string(),
        loading: *loading,
    });
}
