//! Keys and values of one layer of one sequence in the host's memory. Knows heads and positions, no attention.
//!
//! They lie in segments of [`SEGMENT`] tokens that never move: growing copies nothing, and what is given back goes back
//! to the system. In a segment each head has its keys and then its values in one piece. Values are rows. Keys lie in
//! blocks of [`BLOCK`], the same element of all keys of a block side by side. One vector instruction works on many
//! keys, each lane is one score, and no sum runs across lanes.

use std::io;

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use model_boss_weights::store::HostBuffer;
use pulp::bytemuck::{cast_slice, cast_slice_mut};

use super::kernel::Panel;
use super::segment::{BLOCK, SEGMENT};

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

/// One layer's keys and values of one sequence.
pub(crate) struct HostKv {
    kv_heads: usize,
    head_dim: usize,
    kept: KvElement,
    segments: Vec<HostBuffer>,
}

/// One head's part of one segment.
#[derive(Clone, Copy)]
pub(super) struct HeadSegment<'a> {
    /// `[SEGMENT / BLOCK, head_dim, BLOCK]`.
    pub(super) keys: Panel<'a>,
    /// `[SEGMENT, head_dim]`.
    pub(super) values: Panel<'a>,
}

impl HostKv {
    /// Without room for anything.
    pub(crate) fn new(kv_heads: usize, head_dim: usize, kept: KvElement) -> Self {
        Self { kv_heads, head_dim, kept, segments: Vec::new() }
    }

    /// The number of tokens that memory for `tokens` has room for.
    pub(crate) fn room_for(tokens: usize) -> usize {
        tokens.next_multiple_of(SEGMENT)
    }

    /// Makes room for `tokens` in all. Existing content is kept.
    ///
    /// # Errors
    /// The system has no more memory.
    pub(crate) fn reserve(&mut self, tokens: usize) -> io::Result<()> {
        while self.segments.len() * SEGMENT < tokens {
            let bytes = self.kv_heads * self.head_len() * self.kept.bytes();
            self.segments.push(HostBuffer::new(bytes)?);
        }
        Ok(())
    }

    /// Values of a head in a segment.
    fn head_len(&self) -> usize {
        2 * SEGMENT * self.head_dim
    }

    /// A head's part of a segment that there is room for.
    pub(super) fn segment(&self, segment: usize, head: usize) -> HeadSegment<'_> {
        let buffer = &self.segments[segment];
        let all = match self.kept {
            KvElement::Halves => Panel::Halves(cast_slice(buffer)),
            KvElement::Floats => Panel::Floats(cast_slice(buffer)),
        };
        let (begin, half) = (head * self.head_len(), self.head_len() / 2);
        HeadSegment { keys: all.part(begin, half), values: all.part(begin + half, half) }
    }

    /// A writer for each head, so that heads can be written at once.
    pub(super) fn writers(&mut self) -> Vec<HeadWriter<'_>> {
        let (head_dim, head_len) = (self.head_dim, self.head_len().max(1));
        let mut writers: Vec<_> = (0..self.kv_heads).map(|_| HeadWriter { head_dim, segments: Vec::new() }).collect();
        for buffer in &mut self.segments {
            match self.kept {
                KvElement::Halves => {
                    let parts = cast_slice_mut(buffer).chunks_exact_mut(head_len);
                    writers
                        .iter_mut()
                        .zip(parts)
                        .for_each(|(writer, part)| writer.segments.push(SegmentPart::Halves(part)));
                }
                KvElement::Floats => {
                    let parts = cast_slice_mut(buffer).chunks_exact_mut(head_len);
                    writers
                        .iter_mut()
                        .zip(parts)
                        .for_each(|(writer, part)| writer.segments.push(SegmentPart::Floats(part)));
                }
            }
        }
        writers
    }
}

/// Writes one head.
pub(super) struct HeadWriter<'a> {
    head_dim: usize,
    segments: Vec<SegmentPart<'a>>,
}

/// A head's part of a segment.
enum SegmentPart<'a> {
    Halves(&'a mut [u16]),
    Floats(&'a mut [f32]),
}

impl HeadWriter<'_> {
    /// Puts a key and a value, `[head_dim]` each, at a position that there is room for; rounded, if halves are kept.
    pub(super) fn write(&mut self, position: usize, key: &[f32], value: &[f32]) {
        let (head_dim, at) = (self.head_dim, position % SEGMENT);
        match &mut self.segments[position / SEGMENT] {
            SegmentPart::Floats(part) => put(part, at, head_dim, key, value, |from, to| to.copy_from_slice(from)),
            SegmentPart::Halves(part) => put(part, at, head_dim, key, value, narrow),
        }
    }
}

/// Puts a key and a value at a place of a segment.
fn put<T: Copy + Default>(
    part: &mut [T],
    at: usize,
    head_dim: usize,
    key: &[f32],
    value: &[f32],
    convert: impl Fn(&[f32], &mut [T]),
) {
    let (keys, values) = part.split_at_mut(SEGMENT * head_dim);
    convert(value, &mut values[at * head_dim..][..head_dim]);
    let block = &mut keys[at / BLOCK * BLOCK * head_dim..][..BLOCK * head_dim];
    let mut converted = [T::default(); 64];
    for (key, block) in key.chunks(converted.len()).zip(block.chunks_mut(converted.len() * BLOCK)) {
        let converted = &mut converted[..key.len()];
        convert(key, converted);
        for (element, row) in converted.iter().zip(block.as_chunks_mut::<BLOCK>().0) {
            row[at % BLOCK] = *element;
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
        let (kv_heads, head_dim) = (3, 72);
        let mut kv = HostKv::new(kv_heads, head_dim, kept);
        assert!(kv.writers().iter().all(|writer| writer.segments.is_empty()));
        kv.reserve(SEGMENT + 1).unwrap();
        let number = |head: usize, at: usize, i: usize| ((head * 7 + at * 13 + i) % 101) as f32 / 8.0 - 5.0;
        let positions = [0, 1, BLOCK - 1, BLOCK, SEGMENT - 1, SEGMENT, 2 * SEGMENT - 1];
        for at in positions {
            for (head, writer) in kv.writers().iter_mut().enumerate() {
                let key: Vec<f32> = (0..head_dim).map(|i| number(head, at, i)).collect();
                let value: Vec<f32> = key.iter().map(|x| -x).collect();
                writer.write(at, &key, &value);
            }
        }
        for at in positions {
            for head in 0..kv_heads {
                let HeadSegment { keys, values } = kv.segment(at / SEGMENT, head);
                let (block, lane) = (at % SEGMENT / BLOCK, at % BLOCK);
                for i in 0..head_dim {
                    let number_at = |panel: Panel<'_>, at: usize| match panel {
                        Panel::Halves(bits) => f16::from_bits(bits[at]).to_f32(),
                        Panel::Floats(floats) => floats[at],
                    };
                    let key = number_at(keys, (block * head_dim + i) * BLOCK + lane);
                    let value = number_at(values, at % SEGMENT * head_dim + i);
                    assert_eq!((key, value), (number(head, at, i), -number(head, at, i)));
                }
            }
        }
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
