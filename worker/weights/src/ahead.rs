//! Requests to the system to read pieces of mapped files before they are touched. The module knows ranges, not their
//! meaning.

use memmap2::Mmap;

/// Requests a piece of a mapped file without waiting for it. Only [`ASKED_AT_ONCE`] bytes are certain to be read ahead:
/// of a longer piece, systems read the beginning.
pub(crate) fn will_need(map: &Mmap, offset: u64, len: u64) {
    let range = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
    if let Some((offset, len)) =
        range.filter(|(offset, len)| offset.checked_add(*len).is_some_and(|end| end <= map.len()))
    {
        // The call is advice: if the system ignores it, the bytes are read when they are touched.
        #[cfg(unix)]
        let _ = map.advise_range(memmap2::Advice::WillNeed, offset, len);
    }
}

/// The share of a mapped file that is in memory, from 0 to 1, by a sample of pages. The result is 1 where the system
/// does not report it, as some do not for other users' files.
pub(crate) fn cached_share(map: &Mmap) -> f64 {
    #[cfg(target_os = "linux")]
    {
        // Multiples of every page size in use.
        const GRID: usize = 64 << 10;
        const PLACES: usize = 128;
        let spots = map.len() / GRID;
        let places = spots.min(PLACES);
        let is_there = |place: &usize| {
            let bytes = &map[place * spots / places * GRID..];
            let mut there = [0_u8; 1];
            #[allow(unsafe_code)]
            // SAFETY: the call covers one byte of the map, which is one page. For one page, one byte is written.
            let answer = unsafe { nix::libc::mincore(bytes.as_ptr().cast_mut().cast(), 1, there.as_mut_ptr()) };
            answer != 0 || there[0] & 1 == 1
        };
        if places > 0 {
            return (0..places).filter(is_there).count() as f64 / places as f64;
        }
    }
    1.0
}

/// The bytes that Linux reads for one request to read ahead, with usual settings: no more than the disk accepts in one
/// command.
pub const ASKED_AT_ONCE: u64 = 512 << 10;

/// Requests all bytes between two offsets of a file.
pub(crate) fn will_need_all(map: &Mmap, from: u64, to: u64) {
    let to = to.min(map.len() as u64);
    let mut at = from;
    while at < to {
        let len = ASKED_AT_ONCE.min(to - at);
        will_need(map, at, len);
        at += len;
    }
}
