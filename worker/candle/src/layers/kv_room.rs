//! How the room for keys and values grows on devices that have tensors for them.

/// Blocks that a device first gets room for, and the fewest by which the room grows. It then grows by a share, so
/// appending costs O(1) per token on average.
const FIRST_ROOM: usize = 8;
/// The part of the room by which it grows: memory that no token uses yet is missing elsewhere (EN-2).
const GROWS_BY: usize = 10;

/// Blocks that there is room for, once some are needed where there was room for `before` of them.
pub(super) fn room_after(before: usize, needed: usize, most: usize) -> usize {
    let grown = before + (before / GROWS_BY).max(FIRST_ROOM);
    grown.min(most).max(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn en_2_room_on_a_device_follows_the_tokens_and_ends_at_the_budget() {
        let (most, mut room, mut moves) = (5_000, 0, 0);
        for needed in 1..=most {
            if room < needed {
                (room, moves) = (room_after(room, needed, most), moves + 1);
            }
            assert!(needed <= room && room <= most, "{needed} {room}");
            assert!(room - needed <= (needed / GROWS_BY).max(FIRST_ROOM), "{needed} {room}");
        }
        assert!(moves < 60, "{moves}");
        assert_eq!(room_after(10, 300, most), 300, "a long prompt is made room for as it is");
    }
}
