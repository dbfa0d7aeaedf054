//! Small values for this crate's tests.

use std::time::Duration;

use model_boss_protocol::{ByteCount, Category, DeviceId};

use crate::{DeviceObservation, ModelDescription, Moment, SizeEstimate, SizeRule};

/// A chat model of this size for any device, with one request at a time.
pub(crate) fn model(name: &str, gib: u64) -> ModelDescription {
    ModelDescription {
        id: name.into(),
        aliases: Vec::new(),
        category: Category::Llm,
        device: DeviceId::Auto,
        size: SizeEstimate { bytes: ByteCount::gib(gib), rule: SizeRule::Manifest, streamed: None },
        max_concurrent: 1,
        pin: false,
        keep_alive: None,
        revision: 1,
        exclusive_devices: Vec::new(),
        splittable: false,
        context_length: None,
        residency: Default::default(),
        engine: Default::default(),
        named: None,
    }
}

/// A device with this much memory for models and no foreign use.
pub(crate) fn device(name: &str, gib: u64) -> DeviceObservation {
    DeviceObservation {
        device: name.parse().unwrap_or_default(),
        capacity: Some(ByteCount::gib(gib)),
        reserve: ByteCount::ZERO,
        foreign: Some(ByteCount::ZERO),
        retention: None,
        exclusive: false,
        leaking: ByteCount::ZERO,
        lost: false,
    }
}

/// The moment `n` milliseconds after the start.
pub(crate) fn ms(n: u64) -> Moment {
    Moment::at(Duration::from_millis(n))
}

/// The moment `n` seconds after the start.
pub(crate) fn s(n: u64) -> Moment {
    Moment::at(Duration::from_secs(n))
}
