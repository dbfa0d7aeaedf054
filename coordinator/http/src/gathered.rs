//! A body put together from pieces without being in memory twice.

use bytes::Bytes;

/// Up to so many bytes the buffer grows as it needs to, which costs little.
const SMALL: usize = 1 << 20;

/// Pieces of one body. A single piece is passed on without a copy.
#[derive(Debug)]
pub struct Gathered {
    first: Bytes,
    several: Vec<u8>,
    most: u64,
}

impl Gathered {
    /// Nothing yet, and never more than `most` bytes.
    pub const fn new(most: u64) -> Self {
        Self { first: Bytes::new(), several: Vec::new(), most }
    }

    /// Bytes so far.
    pub fn size(&self) -> usize {
        self.first.len() + self.several.len()
    }

    /// The next piece.
    pub fn add(&mut self, piece: Bytes) {
        if self.size() == 0 {
            self.first = piece;
            return;
        }
        let size = self.size() + piece.len();
        // A buffer that grows is there twice while it moves, so a large one gets room for the largest at once. That is
        // addresses, not memory: a page is taken when it is written to. A system that has none to give lets it grow.
        if size > SMALL && size > self.several.capacity() {
            let most = usize::try_from(self.most).unwrap_or(usize::MAX).max(size);
            _ = self.several.try_reserve_exact(most - self.several.len());
        }
        self.several.extend_from_slice(&std::mem::take(&mut self.first));
        self.several.extend_from_slice(&piece);
    }

    /// All of it.
    pub fn whole(mut self) -> Bytes {
        if self.several.is_empty() {
            return self.first;
        }
        self.several.shrink_to_fit();
        Bytes::from(self.several)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_piece_stays_where_it_is() {
        let piece = Bytes::from(vec![1; 100]);
        let mut gathered = Gathered::new(1_000);
        gathered.add(piece.clone());
        assert_eq!(gathered.size(), 100);
        assert_eq!(gathered.whole().as_ptr(), piece.as_ptr());
        assert!(Gathered::new(0).whole().is_empty());
    }

    #[test]
    fn a_large_one_is_never_moved_while_it_grows() {
        let mut gathered = Gathered::new(4 * SMALL as u64);
        let pieces = |gathered: &mut Gathered, n: usize| {
            (0..n).for_each(|n| gathered.add(Bytes::from(vec![u8::try_from(n % 251).unwrap(); SMALL / 8])));
        };
        pieces(&mut gathered, 9);
        let place = gathered.several.as_ptr();
        pieces(&mut gathered, 23);
        assert_eq!((gathered.size(), gathered.several.as_ptr()), (4 * SMALL, place));
        // More than was said is no fault, and what is kept has no room to spare.
        gathered.add(Bytes::from_static(b"more"));
        assert!(gathered.whole().ends_with(b"more"));
    }
}
