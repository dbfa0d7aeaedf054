//! Sizes in a request for memory.

use model_boss_protocol::{ByteCount, DeviceId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bytes on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PartBody {
    /// The device.
    pub device: DeviceId,
    /// The size.
    pub memory: ByteCount,
}

/// Bytes on each of any `count` devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AnyBody {
    /// The number of devices.
    pub count: usize,
    /// The size on each.
    pub memory: ByteCount,
    /// The devices to choose from; every GPU when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub among: Option<Vec<DeviceId>>,
}
