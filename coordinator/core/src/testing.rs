//! Small values for this crate's tests.

use std::time::Duration;

use model_boss_protocol::ByteCount;

use crate::{DeviceObservation, ModelDescription, Moment};

/// A chat model of this size for any device, with one request at a time.
pub(crate) fn model(name: &str, gib: u64) -> ModelDescription {
    ModelDescription::plain(name, ByteCount::gib(gib))
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
