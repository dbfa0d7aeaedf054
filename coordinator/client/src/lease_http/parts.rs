//! Parts of a wish for memory.

use model_boss_protocol::{ByteCount, DeviceId};
use serde::{Deserialize, Serialize};

/// Bytes on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartBody {
    /// Where.
    pub device: DeviceId,
    /// How much.
    pub memory: ByteCount,
}

/// Bytes on each of any `count` devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnyBody {
    /// On how many.
    pub count: usize,
    /// How much on each.
    pub memory: ByteCount,
    /// Which may be chosen; every GPU when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub among: Option<Vec<DeviceId>>,
}
