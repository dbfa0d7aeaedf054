//! The first waiters, and what they were nominated for.

use std::collections::BTreeMap;

use model_boss_protocol::ByteCount;

use crate::DeviceKey;

/// What those who come before somebody are nominated for.
#[derive(Debug, Default)]
pub(super) struct Nominated {
    bytes: BTreeMap<DeviceKey, ByteCount>,
    /// How many they are.
    pub(super) count: usize,
    /// The first of them, for people.
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
