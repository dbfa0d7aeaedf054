//! Splits of a model over several devices, in proportion to their spare memory (RC-22). The module is pure arithmetic.

use model_boss_protocol::{ByteCount, SignedBytes};

use crate::need::Need;

/// The bytes that a part of a split model leaves free on its device.
pub(crate) const MARGIN: SignedBytes = ByteCount::mib(512).signed();

/// Whether devices with these free bytes hold `need` together. One device holds all of it; several hold it beside their
/// margins. The host, which is last if it buffers, holds its own part.
pub(crate) fn holds(need: &Need, free: &[SignedBytes]) -> bool {
    let (free, host) = apart(need, free);
    need.bytes.signed() <= spare(free) && host.is_none_or(|(wanted, free)| wanted.signed() <= free)
}

/// The bytes that devices with these free bytes have for a model together: all of one device, or of several the bytes
/// beside their margins.
pub(crate) fn spare(free: &[SignedBytes]) -> SignedBytes {
    match free {
        [one] => *one,
        several => several.iter().map(|&free| effective(free)).sum(),
    }
}

/// The parts of `need` on devices with these free bytes, in their order and in proportion to their spare memory;
/// `None` when it does not fit. A device without spare memory gets none.
pub(crate) fn shares(need: &Need, free: &[SignedBytes]) -> Option<Vec<ByteCount>> {
    if !holds(need, free) {
        return None;
    }
    let (free, host) = apart(need, free);
    let mut parts = if free.len() == 1 { vec![need.bytes] } else { in_proportion(need.bytes, free) };
    parts.extend(host.map(|(wanted, _)| wanted));
    Some(parts)
}

/// The bytes that the parts take from their devices, with the margins of a split.
pub(crate) fn takes(need: &Need, parts: &[ByteCount]) -> Vec<SignedBytes> {
    let computing = parts.len() - usize::from(need.host.is_some()).min(parts.len());
    let margin = |place: usize, part: &ByteCount| {
        if computing > 1 && place < computing && part.0 > 0 { MARGIN } else { SignedBytes::ZERO }
    };
    parts.iter().enumerate().map(|(place, part)| part.signed() + margin(place, part)).collect()
}

fn in_proportion(bytes: ByteCount, free: &[SignedBytes]) -> Vec<ByteCount> {
    let spare: Vec<u128> = free.iter().map(|&free| u128::from(effective(free).clamped().0)).collect();
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
fn apart<'f>(need: &Need, free: &'f [SignedBytes]) -> (&'f [SignedBytes], Option<(ByteCount, SignedBytes)>) {
    match (need.host, free) {
        (Some(wanted), [computing @ .., host]) => (computing, Some((wanted, *host))),
        _ => (free, None),
    }
}

fn effective(free: SignedBytes) -> SignedBytes {
    (free - MARGIN).max(SignedBytes::ZERO)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: i128 = 1 << 30;

    /// Free bytes of devices, each with this much beside a margin.
    fn beside_margins(free: [i128; 2]) -> Vec<SignedBytes> {
        free.map(|free| SignedBytes::from(free) + MARGIN).to_vec()
    }

    fn signed<const N: usize>(free: [i128; N]) -> [SignedBytes; N] {
        free.map(SignedBytes::from)
    }

    #[test]
    fn rc_22_parts_are_in_proportion_to_what_each_device_has_to_spare() {
        let free = beside_margins([24 * GIB, 8 * GIB]);
        let gib = ByteCount::gib;
        assert_eq!(shares(&Need::of(gib(16)), &free), Some(vec![gib(12), gib(4)]));
        assert_eq!(shares(&Need::of(gib(32)), &free), Some(vec![gib(24), gib(8)]));
        assert_eq!(shares(&Need::of(ByteCount(gib(32).0 + 1)), &free), None);
    }

    #[test]
    fn rs_11_the_hosts_part_is_its_own_and_has_no_margin() {
        let gib = ByteCount::gib;
        let need = Need { bytes: gib(8), host: Some(gib(3)) };
        assert_eq!(shares(&need, &signed([8 * GIB, 3 * GIB])), Some(vec![gib(8), gib(3)]));
        assert_eq!(shares(&need, &signed([80 * GIB, 3 * GIB - 1])), None, "what the GPU has over is of no use");
        assert_eq!(shares(&need, &signed([8 * GIB - 1, 30 * GIB])), None);
        let two = [beside_margins([4 * GIB, 4 * GIB]), signed([3 * GIB]).to_vec()].concat();
        let parts = shares(&need, &two).unwrap();
        assert_eq!(parts, [gib(4), gib(4), gib(3)]);
        assert_eq!(takes(&need, &parts), two);
    }

    #[test]
    fn rc_22_one_device_needs_no_margin_and_a_full_one_gets_nothing() {
        assert_eq!(shares(&Need::of(ByteCount::gib(8)), &signed([8 * GIB])), Some(vec![ByteCount::gib(8)]));
        let parts = shares(&Need::of(ByteCount::gib(8)), &signed([GIB / 4, 20 * GIB, -GIB]));
        assert_eq!(parts, Some(vec![ByteCount::ZERO, ByteCount::gib(8), ByteCount::ZERO]));
    }

    proptest! {
        #[test]
        fn rc_22_the_parts_are_the_whole_and_none_eats_its_margin(
            need in 1..200_000_000_000u64,
            free in prop::collection::vec(-10_000_000_000..90_000_000_000i128, 2..9),
        ) {
            let free: Vec<SignedBytes> = free.into_iter().map(SignedBytes::from).collect();
            let spare: SignedBytes = free.iter().map(|&free| effective(free)).sum();
            match shares(&Need::of(ByteCount(need)), &free) {
                None => prop_assert!(spare < ByteCount(need).signed()),
                Some(parts) => {
                    prop_assert_eq!(parts.iter().copied().sum::<ByteCount>(), ByteCount(need));
                    for (part, free) in parts.iter().zip(&free) {
                        prop_assert!(part.signed() <= effective(*free));
                    }
                }
            }
        }
    }
}
