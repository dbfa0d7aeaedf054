//! Splits of a model over several devices, in proportion to their spare memory (RC-22). The module is pure arithmetic.

use model_boss_protocol::ByteCount;

use crate::need::Need;

/// The bytes that a part of a split model leaves free on its device.
pub(crate) const MARGIN: i128 = 512 << 20;

/// Whether devices with these free bytes hold `need` together. One device holds all of it; several hold it beside their
/// margins. The host, which is last if it buffers, holds its own part.
pub(crate) fn holds(need: &Need, free: &[i128]) -> bool {
    let (free, host) = apart(need, free);
    i128::from(need.bytes.0) <= spare(free) && host.is_none_or(|(wanted, free)| i128::from(wanted.0) <= free)
}

/// The bytes that devices with these free bytes have for a model together: all of one device, or of several the bytes
/// beside their margins.
pub(crate) fn spare(free: &[i128]) -> i128 {
    match free {
        [one] => *one,
        several => several.iter().map(|&free| effective(free)).sum(),
    }
}

/// The parts of `need` on devices with these free bytes, in their order and in proportion to their spare memory;
/// `None` when it does not fit. A device without spare memory gets none.
pub(crate) fn shares(need: &Need, free: &[i128]) -> Option<Vec<ByteCount>> {
    if !holds(need, free) {
        return None;
    }
    let (free, host) = apart(need, free);
    let mut parts = if free.len() == 1 { vec![need.bytes] } else { in_proportion(need.bytes, free) };
    parts.extend(host.map(|(wanted, _)| wanted));
    Some(parts)
}

/// The bytes that the parts take from their devices, with the margins of a split.
pub(crate) fn takes(need: &Need, parts: &[ByteCount]) -> Vec<i128> {
    let computing = parts.len() - usize::from(need.host.is_some()).min(parts.len());
    let margin = |place: usize, part: &ByteCount| {
        if computing > 1 && place < computing && part.0 > 0 { MARGIN } else { 0 }
    };
    parts.iter().enumerate().map(|(place, part)| i128::from(part.0) + margin(place, part)).collect()
}

fn in_proportion(bytes: ByteCount, free: &[i128]) -> Vec<ByteCount> {
    let spare: Vec<u128> = free.iter().map(|&free| effective(free).unsigned_abs()).collect();
    let total: u128 = spare.iter().sum();
    let mut rest = u128::from(bytes.0);
    let mut parts: Vec<u128> =
        spare.iter().map(|spare| (u128::from(bytes.0) * spare).checked_div(total).unwrap_or(0)).collect();
    rest -= parts.iter().sum::<u128>();
    // Rounding leaves fewer bytes than there are devices.
    for (part, spare) in parts.iter_mut().zip(&spare) {
        let more = rest.min(spare - *part);
        *part += more;
        rest -= more;
    }
    parts.into_iter().map(|part| ByteCount(u64::try_from(part).unwrap_or(u64::MAX))).collect()
}

/// The free bytes of the computing devices, and for the host beside them its needed and its free bytes.
fn apart<'f>(need: &Need, free: &'f [i128]) -> (&'f [i128], Option<(ByteCount, i128)>) {
    match (need.host, free) {
        (Some(wanted), [computing @ .., host]) => (computing, Some((wanted, *host))),
        _ => (free, None),
    }
}

fn effective(free: i128) -> i128 {
    (free - MARGIN).max(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: i128 = 1 << 30;

    #[test]
    fn rc_22_parts_are_in_proportion_to_what_each_device_has_to_spare() {
        let free = [24 * GIB + MARGIN, 8 * GIB + MARGIN];
        let gib = ByteCount::gib;
        assert_eq!(shares(&Need::of(gib(16)), &free), Some(vec![gib(12), gib(4)]));
        assert_eq!(shares(&Need::of(gib(32)), &free), Some(vec![gib(24), gib(8)]));
        assert_eq!(shares(&Need::of(ByteCount(gib(32).0 + 1)), &free), None);
    }

    #[test]
    fn rs_11_the_hosts_part_is_its_own_and_has_no_margin() {
        let gib = ByteCount::gib;
        let need = Need { bytes: gib(8), host: Some(gib(3)) };
        assert_eq!(shares(&need, &[8 * GIB, 3 * GIB]), Some(vec![gib(8), gib(3)]));
        assert_eq!(shares(&need, &[80 * GIB, 3 * GIB - 1]), None, "what the GPU has over is of no use");
        assert_eq!(shares(&need, &[8 * GIB - 1, 30 * GIB]), None);
        let two = [4 * GIB + MARGIN, 4 * GIB + MARGIN, 3 * GIB];
        let parts = shares(&need, &two).unwrap();
        assert_eq!(parts, [gib(4), gib(4), gib(3)]);
        assert_eq!(takes(&need, &parts), two);
    }

    #[test]
    fn rc_22_one_device_needs_no_margin_and_a_full_one_gets_nothing() {
        assert_eq!(shares(&Need::of(ByteCount::gib(8)), &[8 * GIB]), Some(vec![ByteCount::gib(8)]));
        let parts = shares(&Need::of(ByteCount::gib(8)), &[MARGIN / 2, 20 * GIB, -GIB]);
        assert_eq!(parts, Some(vec![ByteCount::ZERO, ByteCount::gib(8), ByteCount::ZERO]));
    }

    proptest! {
        #[test]
        fn rc_22_the_parts_are_the_whole_and_none_eats_its_margin(
            need in 1..200_000_000_000u64,
            free in prop::collection::vec(-10_000_000_000..90_000_000_000i128, 2..9),
        ) {
            let spare: i128 = free.iter().map(|&free| effective(free)).sum();
            match shares(&Need::of(ByteCount(need)), &free) {
                None => prop_assert!(spare < i128::from(need)),
                Some(parts) => {
                    prop_assert_eq!(parts.iter().copied().sum::<ByteCount>(), ByteCount(need));
                    for (part, free) in parts.iter().zip(&free) {
                        prop_assert!(i128::from(part.0) <= effective(*free));
                    }
                }
            }
        }
    }
}
