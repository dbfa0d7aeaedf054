//! Parts of a wish for memory.

use model_boss_protocol::{ByteCount, DeviceId};
use serde::{Deserialize, Serialize};

/// Bytes on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartBody {
    /// Where.
    pub(crate) device: DeviceId,
    /// How much.
    pub(crate) memory: ByteCount,
}

/// Bytes on each of any `count` devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnyBody {
    /// On how many.
    pub(crate) count: usize,
    /// How much on each.
    pub(crate) memory: ByteCount,
    /// Which may be chosen; every GPU when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) among: Option<Vec<DeviceId>>,
}
