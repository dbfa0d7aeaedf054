//! Pieces of files that are read together: the bytes to request, and the place of each piece in the buffer. The module
//! computes and does not read.

use std::ops::Range;

use super::buffer::PAGE;

/// Pieces with a gap of no more than this are read in one go: a disk needs longer to begin anew.
const LARGEST_GAP: u64 = 256 << 10;

/// A piece of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// The index of the file in the store.
    pub file: usize,
    /// The offset of the first byte in the file.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
}

impl Extent {
    /// The offset of the first byte after the piece.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// Whole pages of one file that are read in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The bytes that are read: from the start of a page to the end of one or of the file.
    pub extent: Extent,
    /// The offset in the buffer, aligned to a page.
    pub at: usize,
}

/// The reads that bring some pieces into one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reads {
    runs: Vec<Run>,
    places: Vec<Range<usize>>,
    buffer: usize,
}

impl Reads {
    /// Plans the reads of some pieces: as few as possible, in the order of the files.
    pub fn of(pieces: &[Extent]) -> Self {
        let page = PAGE as u64;
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        order.sort_by_key(|index| pieces[*index]);
        let mut runs: Vec<Run> = Vec::new();
        let mut places = vec![0..0; pieces.len()];
        let mut buffer = 0;
        for index in order {
            let piece = pieces[index];
            let (start, end) = (piece.offset / page * page, piece.end().next_multiple_of(page));
            match runs.last_mut() {
                Some(run) if run.extent.file == piece.file && start <= run.extent.end() + LARGEST_GAP => {
                    let longer = end.max(run.extent.end());
                    buffer += (longer - run.extent.end()) as usize;
                    run.extent.len = longer - run.extent.offset;
                }
                _ => {
                    let extent = Extent { file: piece.file, offset: start, len: end - start };
                    runs.push(Run { extent, at: buffer });
                    buffer += extent.len as usize;
                }
            }
            if let Some(run) = runs.last() {
                let place = run.at + (piece.offset - run.extent.offset) as usize;
                places[index] = place..place + piece.len as usize;
            }
        }
        Self { runs, places, buffer }
    }

    /// The runs of bytes that are read.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The range of each piece in the buffer afterwards, in the order they were given.
    pub fn places(&self) -> &[Range<usize>] {
        &self.places
    }

    /// Bytes of the buffer: whole pages.
    pub fn buffer(&self) -> usize {
        self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_are_read_together_and_far_ones_apart() {
        let piece = |file, offset, len| Extent { file, offset, len };
        let reads = Reads::of(&[piece(0, 10_000, 100), piece(0, 5_000, 4_000), piece(0, 9 << 20, 10), piece(1, 0, 1)]);
        let runs: Vec<_> =
            reads.runs().iter().map(|run| (run.extent.file, run.extent.offset, run.extent.len)).collect();
        assert_eq!(runs, [(0, 4_096, 8_192), (0, 9 << 20, 4_096), (1, 0, 4_096)]);
        assert_eq!(reads.buffer(), 16_384);
        assert_eq!(reads.places()[0], 10_000 - 4_096..10_100 - 4_096);
    }

    proptest! {
        #[test]
        fn every_piece_lies_where_its_run_puts_it(
            pieces in proptest::collection::vec((0..3_usize, 0..5_000_000_u64, 1..300_000_u64), 1..20),
        ) {
            let pieces: Vec<Extent> = pieces.into_iter().map(|(file, offset, len)| Extent { file, offset, len }).collect();
            let reads = Reads::of(&pieces);
            let mut end = 0;
            for run in reads.runs() {
                prop_assert_eq!(run.at, end);
                prop_assert!(run.extent.offset.is_multiple_of(PAGE as u64) && run.extent.len.is_multiple_of(PAGE as u64));
                end += run.extent.len as usize;
            }
            prop_assert_eq!(end, reads.buffer());
            for (piece, place) in pieces.iter().zip(reads.places()) {
                prop_assert_eq!(place.len() as u64, piece.len);
                let run = reads.runs().iter().find(|run| (run.at..run.at + run.extent.len as usize).contains(&place.start));
                let run = run.unwrap();
                prop_assert_eq!(run.extent.file, piece.file);
                prop_assert_eq!(run.extent.offset + (place.start - run.at) as u64, piece.offset);
            }
        }
    }
}
