//! Figures on parked prefixes, for views and metrics.

use std::collections::BTreeMap;

use model_boss_protocol::{ByteCount, ModelId};
use schemars::JsonSchema;
use serde::Serialize;

/// Parked prefixes now, and counts since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub(crate) struct ParkingReport {
    /// `memory`, `files` or `off`.
    pub(crate) place: &'static str,
    /// Bytes of all.
    pub(crate) bytes: ByteCount,
    /// The most bytes that they may have.
    pub(crate) limit: ByteCount,
    /// The models that have some.
    pub(crate) models: Vec<ParkedModel>,
    #[serde(flatten)]
    pub(crate) counts: ParkingCounts,
}

/// The parked prefixes of one model.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct ParkedModel {
    pub(crate) model_name: ModelId,
    /// `memory` or `file`.
    pub(crate) place: &'static str,
    pub(crate) bytes: ByteCount,
    /// Tokens whose keys and values are there; `null` for a file of an earlier process.
    pub(crate) tokens: Option<u64>,
    /// When they were parked, in seconds since 1970.
    pub(crate) parked_at: f64,
}

/// Counts since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct ParkingCounts {
    /// Times a worker parked prefixes.
    pub(crate) parked: u64,
    /// Times a worker got prefixes back.
    pub(crate) restored: u64,
    /// Tokens that workers got back.
    pub(crate) restored_tokens: u64,
    /// Times prefixes were of no use or lost, by the reason.
    pub(crate) refused: BTreeMap<&'static str, u64>,
    /// Times prefixes were dropped, by the reason.
    pub(crate) dropped: BTreeMap<&'static str, u64>,
}
