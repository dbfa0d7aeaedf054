//! The windows that layers of Qwen2.5-VL's tower see. Knows numbers of squares only.

use std::ops::Range;

/// The squares of an image by their windows.
pub(super) struct Windows {
    /// The squares, window by window.
    pub(super) order: Vec<usize>,
    /// The place of each window among them.
    pub(super) ranges: Vec<Range<usize>>,
}

impl Windows {
    /// Windows of so many squares on each side. Those at the right and lower edge have what is left.
    pub(super) fn of([rows, columns]: [usize; 2], side: usize) -> Self {
        let (mut order, mut ranges) = (Vec::with_capacity(rows * columns), Vec::new());
        for top in (0..rows).step_by(side) {
            for left in (0..columns).step_by(side) {
                let first = order.len();
                for row in top..(top + side).min(rows) {
                    order.extend((left..(left + side).min(columns)).map(|column| row * columns + column));
                }
                ranges.push(first..order.len());
            }
        }
        Self { order, ranges }
    }

    /// The place of each square in the order of windows.
    pub(super) fn back(&self) -> Vec<u32> {
        let mut back = vec![0; self.order.len()];
        for (place, square) in self.order.iter().enumerate() {
            back[*square] = place as u32;
        }
        back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_4_windows_cover_an_image_once() {
        let windows = Windows::of([3, 5], 2);
        assert_eq!(windows.order, [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14]);
        assert_eq!(windows.ranges, [0..4, 4..8, 8..10, 10..12, 12..14, 14..15]);
        let back = windows.back();
        assert!((0..15).all(|square| windows.order[back[square] as usize] == square));
        assert_eq!(Windows::of([2, 2], 4).ranges.len(), 1);
    }
}
