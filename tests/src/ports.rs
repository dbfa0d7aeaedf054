//! Ports for workers, apart from those of other tests. Knows nothing of who listens.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};

/// Tells the ranges of one process apart.
static RANGES: AtomicU32 = AtomicU32::new(0);

/// A range of 40 ports that other tests at the same time do not use. It lies below the ephemeral ports, so that no
/// client's connection gets in the way. Strangers may still listen there: whoever takes a port steps over busy ones.
pub fn own_ports() -> RangeInclusive<u16> {
    let number = std::process::id().wrapping_add(RANGES.fetch_add(1, Ordering::Relaxed)) % 500;
    let first = 10_000 + 40 * u16::try_from(number).expect("less than 500");
    first..=first + 39
}
