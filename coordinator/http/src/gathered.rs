//! A body collected from pieces, without ever being in memory twice.

use bytes::Bytes;

/// The size in bytes up to which the buffer simply doubles, which costs little.
const SMALL: usize = 1 << 20;

/// Pieces of one body. A single piece is passed on without a copy.
#[derive(Debug)]
pub struct Gathered {
    first: Bytes,
    several: Vec<u8>,
    most: u64,
}

impl Gathered {
    /// An empty body that may grow to `most` bytes.
    pub const fn new(most: u64) -> Self {
        Self { first: Bytes::new(), several: Vec::new(), most }
    }

    /// The number of bytes so far.
    pub fn size(&self) -> usize {
        self.first.len() + self.several.len()
    }

    /// Adds the next piece.
    pub fn add(&mut self, piece: Bytes) {
        if self.size() == 0 {
            self.first = piece;
            return;
        }
        let size = self.size() + piece.len();
        // A growing buffer is in memory twice while it is copied. A large one therefore reserves its final size at
        // once. The reservation takes addresses, not memory: the kernel takes a page when it is written to. If it
        // fails, the buffer grows step by step.
        if size > SMALL && size > self.several.capacity() {
            let most = usize::try_from(self.most).unwrap_or(usize::MAX).max(size);
            _ = self.several.try_reserve_exact(most - self.several.len());
        }
        self.several.extend_from_slice(&std::mem::take(&mut self.first));
        self.several.extend_from_slice(&piece);
    }

    /// All collected bytes.
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
        // More bytes than expected are no fault, and the kept ones have no spare capacity.
        gathered.add(Bytes::from_static(b"more"));
        assert!(gathered.whole().ends_with(b"more"));
    }
}
