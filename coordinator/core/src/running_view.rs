//! The view of a dispatched request.

use std::time::Duration;

use model_boss_protocol::{ModelId, Priority, RequestId, SlotId};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{Principal, PrincipalKind};

/// A request that was dispatched and has not ended.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RunningView {
    /// The request's number.
    pub id: RequestId,
    /// The principal that sent it.
    pub client: Principal,
    /// Whether that is a client or the operator.
    pub kind: PrincipalKind,
    /// The model that answers the request.
    pub model: ModelId,
    /// The slot that serves the request; `null` for a cloud provider.
    pub slot: Option<SlotId>,
    /// The request's priority.
    pub priority: Priority,
    /// The time from the request's arrival to its dispatch.
    #[serde(rename = "waited_ms", serialize_with = "crate::time::as_millis")]
    #[schemars(with = "u64")]
    pub waited: Duration,
    /// The time since its dispatch.
    #[serde(rename = "ran_ms", serialize_with = "crate::time::as_millis")]
    #[schemars(with = "u64")]
    pub ran: Duration,
}
