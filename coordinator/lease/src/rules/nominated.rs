//! The sum of nominations of the first waiting requests.

use std::collections::BTreeMap;

use model_boss_protocol::ByteCount;

use crate::DeviceKey;

/// The nominations of the requests before another.
#[derive(Debug, Default)]
pub(super) struct Nominated {
    bytes: BTreeMap<DeviceKey, ByteCount>,
    /// The number of these requests.
    pub(super) count: usize,
    /// The human-readable label of the first of these requests.
    pub(super) label: Option<String>,
}

impl Nominated {
    pub(super) fn on(&self, device: &DeviceKey) -> ByteCount {
        self.bytes.get(device).copied().unwrap_or_default()
    }

    pub(super) fn take(&mut self, parts: Vec<(DeviceKey, ByteCount)>) {
        for (device, bytes) in parts {
            let taken = self.bytes.entry(device).or_default();
            *taken = *taken + bytes;
        }
    }
}
