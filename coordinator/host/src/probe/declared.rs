//! Declared devices: they have the values of `[devices.NAME]`, no driver is queried, and only leases use them (DM-1).

use std::time::Instant;

use model_boss_config::DeclaredDevices;
use model_boss_protocol::{ByteCount, DeviceId};

use super::{DeviceSample, Probe};

/// The probe of the devices that the operator declared.
pub struct DeclaredProbe(DeclaredDevices);

impl DeclaredProbe {
    /// The probe of these devices.
    pub fn new(devices: DeclaredDevices) -> Self {
        Self(devices)
    }
}

impl Probe for DeclaredProbe {
    fn sample(&mut self, _leased: &[u32]) -> Vec<DeviceSample> {
        let sample = |(device, declared): (&DeviceId, &model_boss_config::DeclaredDevice)| DeviceSample {
            device: device.clone(),
            name: "declared".to_owned(),
            uuid: None,
            capacity: Some(declared.memory),
            reserve: ByteCount::ZERO,
            // A declared device is for models alone.
            used: Some(ByteCount::ZERO),
            told_apart: true,
            processes: Vec::new(),
            retention: None,
            trouble: None,
            exclusive: declared.exclusive,
            sampled_at: Instant::now(),
        };
        self.0.0.iter().map(sample).collect()
    }
}
