//! Ports for workers, separate from those of other tests. The module does not check whether they are free.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of ranges given out by this process.
static RANGES: AtomicU32 = AtomicU32::new(0);

/// A range of 40 ports that no other test uses at the same time. It is below the ephemeral ports, so that no client's
/// connection occupies one. Other programs may still listen there: the coordinator skips busy ports.
pub fn own_ports() -> RangeInclusive<u16> {
    let number = std::process::id().wrapping_add(RANGES.fetch_add(1, Ordering::Relaxed)) % 500;
    let first = 10_000 + 40 * u16::try_from(number).expect("less than 500");
    first..=first + 39
}
