//! Asking the system for pieces of mapped files before they are touched. Knows ranges, not their meaning.

use memmap2::Mmap;

/// Asks for a piece of a mapped file and does not wait for it. At most [`ASKED_AT_ONCE`] bytes are sure to be heard: of
/// more, systems read the beginning.
pub(crate) fn will_need(map: &Mmap, offset: u64, len: u64) {
    let range = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
    if let Some((offset, len)) =
        range.filter(|(offset, len)| offset.checked_add(*len).is_some_and(|end| end <= map.len()))
    {
        // Advice: where it is not taken, the bytes come when they are touched.
        #[cfg(unix)]
        let _ = map.advise_range(memmap2::Advice::WillNeed, offset, len);
    }
}

/// What Linux reads for one such question to a disk of usual settings: not more than the disk takes in one order.
pub const ASKED_AT_ONCE: u64 = 512 << 10;

/// Asks for everything between two places.
pub(crate) fn will_need_all(map: &Mmap, from: u64, to: u64) {
    let to = to.min(map.len() as u64);
    let mut at = from;
    while at < to {
        let len = ASKED_AT_ONCE.min(to - at);
        will_need(map, at, len);
        at += len;
    }
}
