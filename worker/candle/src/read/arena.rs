//! Host memory for the matrices of a load, packed in large pieces. The system uses large pages for those, which are
//! faster to map, to read and to free.

use bytes::BytesMut;
use model_boss_weights::store::prefer_large_pages;

/// The bytes of one piece: small compared with a model, so that the unused rest at its end does not matter.
const PIECE: usize = 256 << 20;
/// Matrices begin at multiples of this number of bytes: no vector register then spans two cache lines.
const ALIGNMENT: usize = 64;

/// Memory for matrices that will be read.
pub(crate) struct Room {
    piece: BytesMut,
    /// Bytes of matrices that are still to come.
    expected: usize,
}

impl Room {
    /// Memory for about `expected` bytes in all. A wrong number only wastes some memory.
    pub(crate) fn new(expected: u64) -> Self {
        Self { piece: BytesMut::new(), expected: usize::try_from(expected).unwrap_or(usize::MAX) }
    }

    /// Zeroed memory of this size.
    pub(crate) fn take(&mut self, bytes: usize) -> BytesMut {
        let held = bytes.next_multiple_of(ALIGNMENT);
        if self.piece.len() < held {
            self.piece = piece(self.expected.min(PIECE).max(held));
        }
        self.expected = self.expected.saturating_sub(bytes);
        let mut taken = self.piece.split_to(held);
        taken.truncate(bytes);
        taken
    }
}

/// New aligned memory. The system allocates its pages when they are touched, so untouched pages cost nothing.
fn piece(bytes: usize) -> BytesMut {
    let mut piece = BytesMut::zeroed(bytes.saturating_add(ALIGNMENT));
    let askew = piece.as_ptr().addr() % ALIGNMENT;
    let _ = piece.split_to((ALIGNMENT - askew) % ALIGNMENT);
    prefer_large_pages(&mut piece);
    piece
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_aligned_apart_and_of_its_size() {
        let mut room = Room::new(1_000);
        let taken: Vec<BytesMut> = [100, 1, 0, 64, 5_000_000, 3].into_iter().map(|bytes| room.take(bytes)).collect();
        let sizes: Vec<usize> = taken.iter().map(|taken| taken.len()).collect();
        assert_eq!(sizes, [100, 1, 0, 64, 5_000_000, 3]);
        for (index, part) in taken.iter().enumerate() {
            assert!(part.as_ptr().addr().is_multiple_of(ALIGNMENT));
            assert!(part.iter().all(|byte| *byte == 0));
            let apart = |other: &BytesMut| {
                part.is_empty() || other.is_empty() || {
                    let (part, other) = (part.as_ptr_range(), other.as_ptr_range());
                    part.end <= other.start || other.end <= part.start
                }
            };
            assert!(taken[index + 1..].iter().all(apart));
        }
    }
}
