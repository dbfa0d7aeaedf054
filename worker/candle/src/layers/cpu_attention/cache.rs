//! Keys and values of one layer of one sequence in the host's memory. Knows heads and positions, no attention.
//!
//! They lie in pages of [`PAGE`] tokens, which may be anywhere and may be other sequences' too. In a page each head has
//! its keys and then its values in one piece. Values are rows. Of the keys the same element of all lies side by side:
//! one vector instruction works on many keys, each lane is one score, and no sum runs across lanes.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use pulp::bytemuck::{cast_slice, cast_slice_mut};

use super::kernel::Panel;
use super::segment::PAGE;

/// The type that keys and values are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KvElement {
    /// f16: half the memory, and half the bytes to read for each token.
    Halves,
    /// f32.
    Floats,
}

impl KvElement {
    /// Bytes of an element.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Halves => size_of::<f16>(),
            Self::Floats => size_of::<f32>(),
        }
    }
}

/// The shape of one layer's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageShape {
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) kept: KvElement,
}

/// One layer's keys and values of one sequence.
pub(crate) struct HostKv<'a> {
    shape: PageShape,
    /// Pages that are only read, from the first on.
    read: Vec<&'a [u8]>,
    /// Pages behind those, which this sequence alone has.
    written: Vec<&'a mut [u8]>,
}

/// One head's part of one page.
#[derive(Clone, Copy)]
pub(super) struct HeadPage<'a> {
    /// `[head_dim, PAGE]`.
    pub(super) keys: Panel<'a>,
    /// `[PAGE, head_dim]`.
    pub(super) values: Panel<'a>,
}

impl PageShape {
    /// Bytes of a page.
    pub(crate) fn bytes(self) -> usize {
        self.kv_heads * self.head_len() * self.kept.bytes()
    }

    /// Elements of one head in a page.
    fn head_len(self) -> usize {
        2 * PAGE * self.head_dim
    }
}

impl<'a> HostKv<'a> {
    /// Pages of [`PageShape::bytes`] in the order of their tokens, with room for all of them.
    pub(crate) fn new(shape: PageShape, read: Vec<&'a [u8]>, written: Vec<&'a mut [u8]>) -> Self {
        Self { shape, read, written }
    }

    pub(super) fn kept(&self) -> KvElement {
        self.shape.kept
    }

    /// A head's part of a page.
    pub(super) fn page(&self, page: usize, head: usize) -> HeadPage<'_> {
        let bytes = match page.checked_sub(self.read.len()) {
            None => self.read[page],
            Some(behind) => &*self.written[behind],
        };
        let all = match self.shape.kept {
            KvElement::Halves => Panel::Halves(cast_slice(bytes)),
            KvElement::Floats => Panel::Floats(cast_slice(bytes)),
        };
        let (begin, half) = (head * self.shape.head_len(), self.shape.head_len() / 2);
        HeadPage { keys: all.part(begin, half), values: all.part(begin + half, half) }
    }

    /// A writer for each head, so that heads can be written at once.
    pub(super) fn writers(&mut self) -> Vec<HeadWriter<'_>> {
        let PageShape { kv_heads, head_dim, kept } = self.shape;
        let (head_len, first) = (self.shape.head_len().max(1), self.read.len());
        let mut writers: Vec<_> = (0..kv_heads).map(|_| HeadWriter { head_dim, first, pages: Vec::new() }).collect();
        for bytes in &mut self.written {
            match kept {
                KvElement::Halves => {
                    let parts = cast_slice_mut(bytes).chunks_exact_mut(head_len).map(PagePart::Halves);
                    writers.iter_mut().zip(parts).for_each(|(writer, part)| writer.pages.push(part));
                }
                KvElement::Floats => {
                    let parts = cast_slice_mut(bytes).chunks_exact_mut(head_len).map(PagePart::Floats);
                    writers.iter_mut().zip(parts).for_each(|(writer, part)| writer.pages.push(part));
                }
            }
        }
        writers
    }
}

/// Writes one head.
pub(super) struct HeadWriter<'a> {
    head_dim: usize,
    /// The number of the first page that is written.
    first: usize,
    pages: Vec<PagePart<'a>>,
}

/// A head's part of a page.
enum PagePart<'a> {
    Halves(&'a mut [u16]),
    Floats(&'a mut [f32]),
}

impl HeadWriter<'_> {
    /// Puts a key and a value, `[head_dim]` each, at a position of a page that is written; rounded, if halves are kept.
    pub(super) fn write(&mut self, position: usize, key: &[f32], value: &[f32]) {
        let (head_dim, at) = (self.head_dim, position % PAGE);
        match &mut self.pages[position / PAGE - self.first] {
            PagePart::Floats(part) => put(part, at, head_dim, key, value, |from, to| to.copy_from_slice(from)),
            PagePart::Halves(part) => put(part, at, head_dim, key, value, narrow),
        }
    }
}

/// Puts a key and a value at a place of a page.
fn put<T: Copy + Default>(
    part: &mut [T],
    at: usize,
    head_dim: usize,
    key: &[f32],
    value: &[f32],
    convert: impl Fn(&[f32], &mut [T]),
) {
    let (keys, values) = part.split_at_mut(PAGE * head_dim);
    convert(value, &mut values[at * head_dim..][..head_dim]);
    let mut converted = [T::default(); 64];
    for (key, rows) in key.chunks(converted.len()).zip(keys.chunks_mut(converted.len() * PAGE)) {
        let converted = &mut converted[..key.len()];
        convert(key, converted);
        for (element, row) in converted.iter().zip(rows.as_chunks_mut::<PAGE>().0) {
            row[at] = *element;
        }
    }
}

/// Rounds to f16. Values beyond its range stay at its end, because infinity would spoil every later token of the
/// sequence. NaN stays NaN.
fn narrow(wide: &[f32], bits: &mut [u16]) {
    const LARGEST: f32 = 65_504.0;
    let mut held = [0.0; 64];
    for (wide, bits) in wide.chunks(held.len()).zip(bits.chunks_mut(held.len())) {
        let held = &mut held[..wide.len()];
        for (held, wide) in held.iter_mut().zip(wide) {
            *held = wide.clamp(-LARGEST, LARGEST);
        }
        bits.reinterpret_cast_mut::<f16>().convert_from_f32_slice(held);
    }
}

/// f16 as f32, exactly. Both are of the same length.
pub(super) fn widen(bits: &[u16], wide: &mut [f32]) {
    bits.reinterpret_cast::<f16>().convert_to_f32_slice(wide);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_there() {
        what_is_written_is_there_as(KvElement::Halves);
        what_is_written_is_there_as(KvElement::Floats);
    }

    /// With numbers that either can hold.
    fn what_is_written_is_there_as(kept: KvElement) {
        let shape = PageShape { kv_heads: 3, head_dim: 72, kept };
        // Of a type that pages of either kind can lie in.
        let mut memory = vec![0_f32; 3 * shape.bytes() / size_of::<f32>()];
        let number = |head: usize, at: usize, i: usize| ((head * 7 + at * 13 + i) % 101) as f32 / 8.0 - 5.0;
        let positions = [PAGE, PAGE + 1, 2 * PAGE - 1, 2 * PAGE, 3 * PAGE - 1];
        let (read, written) = cast_slice_mut(&mut memory).split_at_mut(shape.bytes());
        let mut kv = HostKv::new(shape, vec![read], written.chunks_exact_mut(shape.bytes()).collect());
        for at in positions {
            for (head, writer) in kv.writers().iter_mut().enumerate() {
                let key: Vec<f32> = (0..shape.head_dim).map(|i| number(head, at, i)).collect();
                let value: Vec<f32> = key.iter().map(|x| -x).collect();
                writer.write(at, &key, &value);
            }
        }
        for at in positions {
            for head in 0..shape.kv_heads {
                let HeadPage { keys, values } = kv.page(at / PAGE, head);
                for i in 0..shape.head_dim {
                    let number_at = |panel: Panel<'_>, at: usize| match panel {
                        Panel::Halves(bits) => f16::from_bits(bits[at]).to_f32(),
                        Panel::Floats(floats) => floats[at],
                    };
                    let key = number_at(keys, i * PAGE + at % PAGE);
                    let value = number_at(values, at % PAGE * shape.head_dim + i);
                    assert_eq!((key, value), (number(head, at, i), -number(head, at, i)));
                }
            }
        }
        let untouched = kv.page(0, 0).values;
        assert!(
            matches!(untouched, Panel::Halves(bits) if bits.iter().all(|bits| *bits == 0))
                || matches!(untouched, Panel::Floats(floats) if floats.iter().all(|float| *float == 0.0))
        );
    }

    #[test]
    fn what_f16_cannot_hold_stays_at_its_end() {
        let mut bits = [0; 5];
        narrow(&[1e9, -1e9, f32::INFINITY, f32::NAN, 1.0 + 1.0 / 4_096.0], &mut bits);
        let mut wide = [0.0; 5];
        widen(&bits, &mut wide);
        assert_eq!((wide[0], wide[1], wide[2], wide[4]), (65_504.0, -65_504.0, 65_504.0, 1.0));
        assert!(wide[3].is_nan());
    }
}
