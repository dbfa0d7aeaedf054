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
    /// Elements of a key.
    pub head_dim: usize,
    /// The values beside the keys.
    pub values: KvValues,
    /// The type of the elements.
    pub kept: KvElement,
}

/// The place of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvValues {
    /// Beside the keys, with this many elements.
    Apart(usize),
    /// The first elements of each key, as in attention over latent vectors (DeepSeek-AI, 2024, arXiv 2405.04434).
    InKeys(usize),
}

impl KvValues {
    /// Elements of a value.
    pub fn width(self) -> usize {
        match self {
            Self::Apart(width) | Self::InKeys(width) => width,
        }
    }

    /// Elements that are kept beside a key.
    pub fn apart(self) -> usize {
        match self {
            Self::Apart(width) => width,
            Self::InKeys(_) => 0,
        }
    }
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
    /// `[PAGE, value_dim]`; empty where values are in the keys.
    pub(super) values: Panel<'a>,
}

impl PageShape {
    /// Bytes of a page.
    pub fn bytes(self) -> usize {
        self.kv_heads * self.head_bytes()
    }

    /// Bytes of one head in a page.
    fn head_bytes(self) -> usize {
        self.key_bytes() + PAGE * self.kept.bytes_of(self.values.apart())
    }

    /// Bytes of one head's keys in a page.
    fn key_bytes(self) -> usize {
        PAGE * self.kept.bytes_of(self.head_dim)
    }

    /// Keys of one head in a page, or its values, from their bytes. Each has `width` elements.
    fn panel(self, bytes: &[u8], groups: Groups, width: usize) -> Panel<'_> {
        match self.kept {
            KvElement::F32 => Panel::Floats(cast_slice(bytes)),
            KvElement::F16 => Panel::Halves(cast_slice(bytes)),
            KvElement::Bf16 => Panel::Brains(cast_slice(bytes)),
            KvElement::Q8_0 => {
                let (quants, scales) = bytes.split_at(PAGE * width);
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

    /// The place of values.
    pub(super) fn values(&self) -> KvValues {
        self.shape.values
    }

    /// The bytes of a head's part of a page.
    pub(super) fn bytes(&self, page: usize, head: usize) -> &[u8] {
        let bytes = match page.checked_sub(self.read.len()) {
            None => self.read[page],
            Some(behind) => &*self.written[behind],
        };
        &bytes[head * self.shape.head_bytes()..][..self.shape.head_bytes()]
    }

    /// A head's part of a page.
    pub(super) fn page(&self, page: usize, head: usize) -> HeadPage<'_> {
        let (keys, values) = self.bytes(page, head).split_at(self.shape.key_bytes());
        HeadPage {
            keys: self.shape.panel(keys, Groups::Columns, self.shape.head_dim),
            values: self.shape.panel(values, Groups::Rows, self.shape.values.apart()),
        }
    }

    /// A writer for each head, so that heads can be written at once.
    pub(super) fn writers(&mut self) -> Vec<HeadWriter<'_>> {
        let (shape, head_bytes, first) = (self.shape, self.shape.head_bytes().max(1), self.read.len());
        let mut writers: Vec<_> = (0..shape.kv_heads).map(|_| HeadWriter { shape, first, pages: Vec::new() }).collect();
        for bytes in &mut self.written {
            let parts = bytes.chunks_exact_mut(head_bytes);
            writers.iter_mut().zip(parts).for_each(|(writer, part)| writer.pages.push(part));
        }
        writers
    }
}

/// Writes one head.
pub(super) struct HeadWriter<'a> {
    shape: PageShape,
    /// The number of the first page that is written.
    first: usize,
    /// The head's part of each page.
    pages: Vec<&'a mut [u8]>,
}

impl HeadWriter<'_> {
    /// Puts a key, `[head_dim]`, and a value, `[value_dim]`, at a position of a page that is written; rounded to the
    /// type that is kept. Of a value in the key nothing is written.
    pub(super) fn write(&mut self, position: usize, key: &[f32], value: &[f32]) {
        let at = position % PAGE;
        let page = &mut *self.pages[position / PAGE - self.first];
        let value = &value[..self.shape.values.apart()];
        match self.shape.kept {
            KvElement::F32 => put(cast_slice_mut::<_, f32>(page), at, key, value, |from, to| to.copy_from_slice(from)),
            KvElement::F16 => put(cast_slice_mut(page), at, key, value, to_halves),
            KvElement::Bf16 => put(cast_slice_mut(page), at, key, value, to_brains),
            KvElement::Q8_0 => put_scaled(page, self.shape.key_bytes(), at, key, value),
        }
    }
}

/// Puts a key and a value at a place of a page.
fn put<T: Copy + Default>(part: &mut [T], at: usize, key: &[f32], value: &[f32], convert: impl Fn(&[f32], &mut [T])) {
    let (keys, values) = part.split_at_mut(PAGE * key.len());
    convert(value, &mut values[at * value.len()..][..value.len()]);
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
fn put_scaled(page: &mut [u8], key_bytes: usize, at: usize, key: &[f32], value: &[f32]) {
    let (keys, values) = page.split_at_mut(key_bytes);
    let (quants, scales) = keys.split_at_mut(PAGE * key.len());
    let (quants, scales) = (cast_slice_mut::<_, i8>(quants), cast_slice_mut::<_, u16>(scales));
    let groups = key.chunks(GROUP).zip(quants.chunks_mut(GROUP * PAGE)).zip(scales.as_chunks_mut::<PAGE>().0);
    for ((key, rows), scales) in groups {
        let mut group = [0_i8; GROUP];
        scales[at] = to_scaled(key, &mut group[..key.len()]);
        for (quant, row) in group.iter().zip(rows.as_chunks_mut::<PAGE>().0) {
            row[at] = *quant;
        }
    }
    let (quants, scales) = values.split_at_mut(PAGE * value.len());
    let of_token = value.len().div_ceil(GROUP);
    let quants = &mut cast_slice_mut::<_, i8>(quants)[at * value.len()..][..value.len()];
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
        const VALUE: usize = 40;
        let shape = PageShape { kv_heads: 3, head_dim: 72, values: KvValues::Apart(VALUE), kept };
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
                let value: Vec<f32> = key.iter().take(VALUE).map(|x| -x).collect();
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
                let (keys, values) = (wide(keys, PAGE), wide(values, VALUE));
                for i in 0..shape.head_dim {
                    assert_eq!(keys[i * PAGE + at % PAGE], number(head, at, i), "{kept:?}");
                }
                for i in 0..VALUE {
                    assert_eq!(values[at % PAGE * VALUE + i], -number(head, at, i), "{kept:?}");
                }
            }
        }
        assert!(wide(kv.page(0, 0).values, VALUE).iter().all(|x| *x == 0.0));
    }
}
