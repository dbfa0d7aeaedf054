//! Keys and values of one layer of one sequence in the host's memory. Knows heads and positions, no attention.
//!
//! They lie in pages of [`PAGE`] tokens, which may be anywhere and may be other sequences' too. In a page each head has
//! its keys and then its values in one piece. Values are rows. Of the keys the same element of all lies side by side:
//! one vector instruction works on many keys, each lane is one score, and no sum runs across lanes.

use pulp::bytemuck::{cast_slice, cast_slice_mut};

use super::kernel::{Groups, Panel, ScaledPanel};
use super::segment::PAGE;
use super::widen::{to_brains, to_halves, to_scaled};
use crate::attention::element::{GROUP, KvElement};

/// The shape of one layer's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageShape {
    /// Heads of keys, and of values.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// The type of the elements.
    pub kept: KvElement,
}

/// One layer's keys and values of one sequence.
pub struct HostKv<'a> {
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
    pub fn bytes(self) -> usize {
        self.kv_heads * self.head_bytes()
    }

    /// Bytes of one head in a page.
    fn head_bytes(self) -> usize {
        2 * PAGE * self.kept.bytes_of(self.head_dim)
    }

    /// Keys of one head in a page, or its values, from their bytes.
    fn panel(self, bytes: &[u8], groups: Groups) -> Panel<'_> {
        match self.kept {
            KvElement::F32 => Panel::Floats(cast_slice(bytes)),
            KvElement::F16 => Panel::Halves(cast_slice(bytes)),
            KvElement::Bf16 => Panel::Brains(cast_slice(bytes)),
            KvElement::Q8_0 => {
                let (quants, scales) = bytes.split_at(PAGE * self.head_dim);
                Panel::Scaled(ScaledPanel { quants: cast_slice(quants), scales: cast_slice(scales), groups })
            }
        }
    }
}

impl<'a> HostKv<'a> {
    /// Pages of [`PageShape::bytes`] in the order of their tokens, with room for all of them.
    pub fn new(shape: PageShape, read: Vec<&'a [u8]>, written: Vec<&'a mut [u8]>) -> Self {
        Self { shape, read, written }
    }

    /// A head's part of a page.
    pub(super) fn page(&self, page: usize, head: usize) -> HeadPage<'_> {
        let bytes = match page.checked_sub(self.read.len()) {
            None => self.read[page],
            Some(behind) => &*self.written[behind],
        };
        let of_head = &bytes[head * self.shape.head_bytes()..][..self.shape.head_bytes()];
        let (keys, values) = of_head.split_at(of_head.len() / 2);
        HeadPage { keys: self.shape.panel(keys, Groups::Columns), values: self.shape.panel(values, Groups::Rows) }
    }

    /// A writer for each head, so that heads can be written at once.
    pub(super) fn writers(&mut self) -> Vec<HeadWriter<'_>> {
        let PageShape { kv_heads, head_dim, kept } = self.shape;
        let (head_bytes, first) = (self.shape.head_bytes().max(1), self.read.len());
        let mut writers: Vec<_> =
            (0..kv_heads).map(|_| HeadWriter { head_dim, kept, first, pages: Vec::new() }).collect();
        for bytes in &mut self.written {
            let parts = bytes.chunks_exact_mut(head_bytes);
            writers.iter_mut().zip(parts).for_each(|(writer, part)| writer.pages.push(part));
        }
        writers
    }
}

/// Writes one head.
pub(super) struct HeadWriter<'a> {
    head_dim: usize,
    kept: KvElement,
    /// The number of the first page that is written.
    first: usize,
    /// The head's part of each page.
    pages: Vec<&'a mut [u8]>,
}

impl HeadWriter<'_> {
    /// Puts a key and a value, `[head_dim]` each, at a position of a page that is written; rounded to the type that is
    /// kept.
    pub(super) fn write(&mut self, position: usize, key: &[f32], value: &[f32]) {
        let (head_dim, at) = (self.head_dim, position % PAGE);
        let page = &mut *self.pages[position / PAGE - self.first];
        match self.kept {
            KvElement::F32 => {
                put(cast_slice_mut::<_, f32>(page), at, head_dim, key, value, |from, to| to.copy_from_slice(from));
            }
            KvElement::F16 => put(cast_slice_mut(page), at, head_dim, key, value, to_halves),
            KvElement::Bf16 => put(cast_slice_mut(page), at, head_dim, key, value, to_brains),
            KvElement::Q8_0 => put_scaled(page, at, head_dim, key, value),
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

/// Puts a key and a value at a place of a page of integers with scales. Each token has scales of its own, so it does
/// not depend on what is written beside it.
fn put_scaled(page: &mut [u8], at: usize, head_dim: usize, key: &[f32], value: &[f32]) {
    let (keys, values) = page.split_at_mut(page.len() / 2);
    let (quants, scales) = keys.split_at_mut(PAGE * head_dim);
    let (quants, scales) = (cast_slice_mut::<_, i8>(quants), cast_slice_mut::<_, u16>(scales));
    let groups = key.chunks(GROUP).zip(quants.chunks_mut(GROUP * PAGE)).zip(scales.as_chunks_mut::<PAGE>().0);
    for ((key, rows), scales) in groups {
        let mut group = [0_i8; GROUP];
        scales[at] = to_scaled(key, &mut group[..key.len()]);
        for (quant, row) in group.iter().zip(rows.as_chunks_mut::<PAGE>().0) {
            row[at] = *quant;
        }
    }
    let (quants, scales) = values.split_at_mut(PAGE * head_dim);
    let of_token = head_dim.div_ceil(GROUP);
    let quants = &mut cast_slice_mut::<_, i8>(quants)[at * head_dim..][..head_dim];
    let scales = &mut cast_slice_mut::<_, u16>(scales)[at * of_token..][..of_token];
    for ((value, quants), scale) in value.chunks(GROUP).zip(quants.chunks_mut(GROUP)).zip(scales) {
        *scale = to_scaled(value, quants);
    }
}

#[cfg(test)]
mod tests {
    use super::super::widen::PanelSpread;
    use super::*;
    use pulp::NullaryFnOnce;

    #[test]
    fn what_is_written_is_there() {
        for kept in [KvElement::F32, KvElement::F16, KvElement::Bf16, KvElement::Q8_0] {
            what_is_written_is_there_as(kept);
        }
    }

    /// With numbers that each type can hold: small integers, and in each group one that makes the scale a power of two.
    fn what_is_written_is_there_as(kept: KvElement) {
        let shape = PageShape { kv_heads: 3, head_dim: 72, kept };
        // Of a type that pages of any kind can lie in.
        let mut memory = vec![0_f32; 3 * shape.bytes() / size_of::<f32>()];
        let number = |head: usize, at: usize, i: usize| match i % GROUP {
            0 => 127.0 / 8.0,
            _ => ((head * 7 + at * 13 + i) % 101) as f32 / 8.0 - 5.0,
        };
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
        let wide = |rows: Panel<'_>, width: usize| {
            let mut wide = vec![0.0; PAGE * shape.head_dim];
            PanelSpread { rows, width, wide: &mut wide, stride: width }.call();
            wide
        };
        for at in positions {
            for head in 0..shape.kv_heads {
                let HeadPage { keys, values } = kv.page(at / PAGE, head);
                let (keys, values) = (wide(keys, PAGE), wide(values, shape.head_dim));
                for i in 0..shape.head_dim {
                    let got = (keys[i * PAGE + at % PAGE], values[at % PAGE * shape.head_dim + i]);
                    assert_eq!(got, (number(head, at, i), -number(head, at, i)), "{kept:?}");
                }
            }
        }
        assert!(wide(kv.page(0, 0).values, shape.head_dim).iter().all(|x| *x == 0.0));
    }
}
