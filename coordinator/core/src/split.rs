//! How a model is spread over several devices: in proportion to what each has to spare (RC-22). Pure arithmetic.

use model_boss_protocol::ByteCount;

/// What a part of a split model leaves free on its device, in bytes.
pub(crate) const MARGIN: i128 = 512 << 20;

/// Whether devices with this much left hold `need` bytes together: one device all of it, several beside their margins.
pub(crate) fn holds(need: i128, free: &[i128]) -> bool {
    match free {
        [one] => *one >= need,
        several => several.iter().map(|&free| effective(free)).sum::<i128>() >= need,
    }
}

/// The parts of `need` on devices with this much left, in their order and in proportion to what each has to spare;
/// `None` when it does not fit. A device without anything to spare gets nothing.
pub(crate) fn shares(need: ByteCount, free: &[i128]) -> Option<Vec<ByteCount>> {
    if !holds(i128::from(need.0), free) {
        return None;
    }
    if free.len() == 1 {
        return Some(vec![need]);
    }
    let spare: Vec<u128> = free.iter().map(|&free| effective(free).unsigned_abs()).collect();
    let total: u128 = spare.iter().sum();
    let mut rest = u128::from(need.0);
    let mut parts: Vec<u128> =
        spare.iter().map(|spare| (u128::from(need.0) * spare).checked_div(total).unwrap_or(0)).collect();
    rest -= parts.iter().sum::<u128>();
    // Rounding leaves fewer bytes than there are devices.
    for (part, spare) in parts.iter_mut().zip(&spare) {
        let more = rest.min(spare - *part);
        *part += more;
        rest -= more;
    }
    Some(parts.into_iter().map(|part| ByteCount(u64::try_from(part).unwrap_or(u64::MAX))).collect())
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
        assert_eq!(shares(ByteCount::gib(16), &free), Some(vec![ByteCount::gib(12), ByteCount::gib(4)]));
        assert_eq!(shares(ByteCount::gib(32), &free), Some(vec![ByteCount::gib(24), ByteCount::gib(8)]));
        assert_eq!(shares(ByteCount(ByteCount::gib(32).0 + 1), &free), None);
    }

    #[test]
    fn rc_22_one_device_needs_no_margin_and_a_full_one_gets_nothing() {
        assert_eq!(shares(ByteCount::gib(8), &[8 * GIB]), Some(vec![ByteCount::gib(8)]));
        let parts = shares(ByteCount::gib(8), &[MARGIN / 2, 20 * GIB, -GIB]);
        assert_eq!(parts, Some(vec![ByteCount::ZERO, ByteCount::gib(8), ByteCount::ZERO]));
    }

    proptest! {
        #[test]
        fn rc_22_the_parts_are_the_whole_and_none_eats_its_margin(
            need in 1..200_000_000_000u64,
            free in prop::collection::vec(-10_000_000_000..90_000_000_000i128, 2..9),
        ) {
            let spare: i128 = free.iter().map(|&free| effective(free)).sum();
            match shares(ByteCount(need), &free) {
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
