//! The layout of every supported block type, as plain scalar code: the reference that faster kernels are compared with.
//! It works on bytes and numbers only.
//!
//! Layouts are ggml's (`ggml-common.h`). `d` and `m` are scale and offset as f16; `q` are small integers. K types hold
//! 256 elements in sub-blocks with scales of their own. All words are little endian.

use half::{bf16, f16};

use super::TensorType;

/// Converts stored elements to floats, in order. The length of `values` must be the number of elements in `stored`.
pub fn dequantise(kind: TensorType, stored: &[u8], values: &mut [f32]) -> Result<(), BlockError> {
    let sizes = usize::try_from(kind.block_len()).ok().zip(usize::try_from(kind.block_bytes()).ok());
    let Some((len, bytes)) = sizes.filter(|_| kind.is_supported()) else {
        return Err(BlockError::Unsupported(kind));
    };
    if !stored.len().is_multiple_of(bytes) || stored.len() / bytes * len != values.len() {
        return Err(BlockError::Length { kind, stored: stored.len(), values: values.len() });
    }
    let blocks = stored.chunks_exact(bytes).zip(values.chunks_exact_mut(len));
    let decode: fn(&mut BlockFields<'_>, &mut [f32]) = match kind {
        TensorType::F32 => |block, out| out.fill(block.f32()),
        TensorType::F16 => |block, out| out.fill(block.f16()),
        TensorType::BF16 => |block, out| out.fill(bf16::from_le_bytes(block.array()).to_f32()),
        TensorType::Q4_0 => q4_0,
        TensorType::Q4_1 => q4_1,
        TensorType::Q5_0 => q5_0,
        TensorType::Q5_1 => q5_1,
        TensorType::Q8_0 => q8_0,
        TensorType::Q2_K => q2_k,
        TensorType::Q3_K => q3_k,
        TensorType::Q4_K => q4_k,
        TensorType::Q5_K => q5_k,
        TensorType::Q6_K => q6_k,
        TensorType::IQ4_NL => iq4_nl,
        TensorType::IQ4_XS => iq4_xs,
        TensorType::MXFP4 => mxfp4,
        TensorType::TQ1_0 => tq1_0,
        TensorType::TQ2_0 => tq2_0,
        TensorType::F8_E4M3 => f8_e4m3,
        TensorType::I8_AFFINE => i8_affine,
        other => return Err(BlockError::Unsupported(other)),
    };
    for (block, out) in blocks {
        decode(&mut BlockFields(block), out);
    }
    Ok(())
}

/// Appends floats as Q8_0 blocks. Their number must be a multiple of 32.
///
/// The scale of a block is its largest magnitude / 127. Elements are rounded to the nearest, halves away from zero,
/// with the scale before it is rounded to f16, as the reference does.
pub fn quantise_q8_0(values: &[f32], stored: &mut Vec<u8>) -> Result<(), BlockError> {
    const LEN: usize = 32;
    if !values.len().is_multiple_of(LEN) {
        return Err(BlockError::Length { kind: TensorType::Q8_0, stored: 0, values: values.len() });
    }
    for block in values.chunks_exact(LEN) {
        let largest = block.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        let scale = largest / 127.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        stored.extend(f16::from_f32(scale).to_le_bytes());
        // `as` saturates, and converts NaN to 0.
        stored.extend(block.iter().map(|x| (x * inverse).round() as i8 as u8));
    }
    Ok(())
}

/// The fields of a block, read front to back. Blocks have the size of their type, so fields never run out.
struct BlockFields<'a>(&'a [u8]);

impl<'a> BlockFields<'a> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let Some((field, rest)) = self.0.split_first_chunk::<N>() else {
            return [0; N];
        };
        self.0 = rest;
        *field
    }

    fn f16(&mut self) -> f32 {
        f16::from_le_bytes(self.array()).to_f32()
    }

    fn f32(&mut self) -> f32 {
        f32::from_le_bytes(self.array())
    }
}

/// A factor as f32, and 64 bytes: see [`super::tensor_type::F8_BLOCK`].
fn f8_e4m3(block: &mut BlockFields<'_>, out: &mut [f32]) {
    let factor = block.f32();
    for (byte, out) in block.0.iter().zip(out) {
        let bits = u16::from(byte & 0x80) << 8 | u16::from(byte & 0x7f) << 7;
        *out = f16::from_bits(bits).to_f32() * factor;
    }
}

/// `d, m, n, q[32]`: signed `q`; the offset is a sum of two, which has twice the bits of one. `x = d q + (m + n)`.
fn i8_affine(block: &mut BlockFields<'_>, out: &mut [f32]) {
    let (d, offset) = (block.f16(), block.f16() + block.f16());
    for (byte, out) in block.0.iter().zip(out) {
        *out = d * f32::from(byte.cast_signed()) + offset;
    }
}

/// `d, q[16]`: 4-bit `q`, low nibbles first (elements 0–15), then high (16–31). `x = d (q − 8)`.
fn q4_0(block: &mut BlockFields<'_>, out: &mut [f32]) {
    let d = block.f16();
    nibbles(&block.array(), out, |_, q| d * (f32::from(q) - 8.0));
}

/// `d, m, q[16]`: as Q4_0, `x = d q + m`.
fn q4_1(block: &mut BlockFields<'_>, out: &mut [f32]) {
    let (d, m) = (block.f16(), block.f16());
    nibbles(&block.array(), out, |_, q| d * f32::from(q) + m);
}

/// `d, h: u32, q[16]`: the nibbles of Q4_0 with bit `i` of `h` as fifth bit of element `i`. `x = d (q − 16)`.
fn q5_0(block: &mut BlockFields<'_>, out: &mut [f32]) {
    let d = block.f16();
    let high = u32::from_le_bytes(block.array());
    nibbles(&block.array(), out, |i, q| d * (f32::from(fifth_bit(high, i, q)) - 16.0));
}

/// `d, m, h: u32, q[16]`: as Q5_0, `x = d q + m`.
fn q5_1(block: &mut BlockFields<'_>, out: &mut [f32]) {
    let (d, m) = (block.f16(), block.f16());
    let high = u32::from_le_bytes(block.array());
    nibbles(&block.array(), out, |i, q| d * f32::from(fifth_bit(high, i, q)) + m);
}

/// `d, q: [i8; 32]`: `x = d q`.
fn q8_0(block: &mut BlockFields<'_>, out: &mut [f32]) {
    let d = block.f16();
    signed(&block.array::<32>(), out, d);
}

/// `scales[16], q[64], d, dmin`: sub-blocks of 16 with a 4-bit scale (low) and minimum (high). The 2-bit `q` of a half
/// of 128 elements are in 32 bytes, the first 32 elements in the lowest bits. `x = d scale q − dmin min`.
fn q2_k(block: &mut BlockFields<'_>, out: &mut [f32]) {
    let scales = block.array::<16>();
    let quants = block.array::<64>();
    let (d, dmin) = (block.f16(), block.f16());
    for (i, x) in out.iter_mut().enumerate() {
        let scale = scales[i / 16 % 16];
        let q = two_bits(&quants, i);
        *x = d * f32::from(scale & 15) * f32::from(q) - dmin * f32::from(scale >> 4);
    }
}

/// `h[32], q[64], scales[12], d`: 2-bit `q` as in Q2_K; bit `i / 32` of `h[i % 32]` is the third bit of element `i`.
/// Sub-blocks of 16 with 6-bit scales: low 4 bits in the nibbles of `scales[0..8]`, high 2 bits in `scales[8..12]`.
/// `x = d (scale − 32) (q − 4)`.
fn q3_k(block: &mut BlockFields<'_>, out: &mut [f32]) {
    let high = block.array::<32>();
    let quants = block.array::<64>();
    let packed = block.array::<12>();
    let d = block.f16();
    let scales: [f32; 16] = std::array::from_fn(|j| {
        let low = if j < 8 { packed[j] & 15 } else { packed[j - 8] >> 4 };
        let top = packed[8 + j % 4] >> (2 * (j / 4)) & 3;
        f32::from(low | top << 4) - 32.0
    });
    for (i, x) in out.iter_mut().enumerate() {
        let q = two_bits(&quants, i) | (high[i % 32] >> (i / 32 % 8) & 1) << 2;
        *x = d * scales[i / 16 % 16] * (f32::from(q) - 4.0);
    }
}

/// `d, dmin, scales[12], q[128]`: sub-blocks of 32 with 6-bit scale and minimum ([`scale_and_min`]). The nibbles of 64
/// elements are in 32 bytes, the first 32 low. `x = d scale q − dmin min`.
fn q4_k(block: &mut BlockFields<'_>, out: &mut [f32]) {
    let (d, dmin) = (block.f16(), block.f16());
    let scales = block.array::<12>();
    let quants = block.array::<128>();
    for (i, x) in out.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(&scales, i / 32);
        *x = d * scale * f32::from(nibble(&quants, i)) - dmin * min;
    }
}

/// `d, dmin, scales[12], h[32], q[128]`: as Q4_K; bit `i / 32` of `h[i % 32]` is the fifth bit of element `i`.
fn q5_k(block: &mut BlockFields<'_>, out: &mut [f32]) {
    let (d, dmin) = (block.f16(), block.f16());
    let scales = block.array::<12>();
    let high = block.array::<32>();
    let quants = block.array::<128>();
    for (i, x) in out.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(&scales, i / 32);
        let q = nibble(&quants, i) | (high[i % 32] >> (i / 32 % 8) & 1) << 4;
        *x = d * scale * f32::from(q) - dmin * min;
    }
}

/// `low[128], high[64], scales: [i8; 16], d`. Each half of 128 elements has 64 bytes of nibbles (elements 0–63 low,
/// 64–127 high). Then it has 32 bytes of two high bits each (the first 32 elements lowest). Sub-blocks of 16.
/// `x = d scale (q − 32)`.
fn q6_k(block: &mut BlockFields<'_>, out: &mut [f32]) {
    let low = block.array::<128>();
    let high = block.array::<64>();
    let scales = block.array::<16>();
    let d = block.f16();
    for (i, x) in out.iter_mut().enumerate() {
        let (half, within) = (i / 128 % 2, i % 128);
        let nibble = low[half * 64 + within % 64] >> (4 * (within / 64)) & 15;
        let q = nibble | two_bits(&high, i) << 4;
        *x = d * f32::from(scales[i / 16 % 16] as i8) * (f32::from(q) - 32.0);
    }
}

/// The values of IQ4_NL and IQ4_XS by their 4-bit numbers (ggml's `kvalues_iq4nl`).
pub const IQ4_NL_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// `d, q[16]`: the nibbles of Q4_0 as numbers of values. `x = d value(q)`.
fn iq4_nl(block: &mut BlockFields<'_>, out: &mut [f32]) {
    let d = block.f16();
    nibbles(&block.array(), out, |_, q| d * f32::from(IQ4_NL_VALUES[usize::from(q)]));
}

/// `d, high: u16, low[4], q[128]`: sub-blocks of 32 in 16 bytes each, as in IQ4_NL. Sub-block `j` has a 6-bit scale:
/// nibble `j` of `low`, and above it two bits of `high`, the first lowest. `x = d (scale − 32) value(q)`.
fn iq4_xs(block: &mut BlockFields<'_>, out: &mut [f32]) {
    let d = block.f16();
    let high = u16::from_le_bytes(block.array());
    let low = block.array::<4>();
    for (j, out) in out.chunks_exact_mut(32).enumerate() {
        let scale = low[j / 2 % 4] >> (4 * (j % 2)) & 15 | ((high >> (2 * j % 16) & 3) as u8) << 4;
        let d = d * (f32::from(scale) - 32.0);
        nibbles(&block.array(), out, |_, q| d * f32::from(IQ4_NL_VALUES[usize::from(q)]));
    }
}

/// `e: u8, q[16]`: the nibbles of Q4_0 as floats of 4 bits (sign, two of exponent, one of mantissa), with a shared
/// exponent. `x = 2^(e − 127) float(q)` (OCP Microscaling Formats v1.0).
fn mxfp4(block: &mut BlockFields<'_>, out: &mut [f32]) {
    const TWICE: [i8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];
    let [exponent] = block.array();
    let half = power_of_two(exponent);
    nibbles(&block.array(), out, |_, q| {
        let twice = f32::from(TWICE[usize::from(q % 8)]) * half;
        if q < 8 { twice } else { -twice }
    });
}

/// `2^(e − 128)`: half of the power of two that an exponent of MXFP4 means, which is a float for every byte.
pub fn power_of_two(exponent: u8) -> f32 {
    // Two factors are normal numbers where their product is not.
    let half = exponent / 2;
    let power = |exponent: u8| f32::from_bits((u32::from(exponent) + 63) << 23);
    power(half) * power(exponent - half)
}

/// `q[48], h[4], d`: digits to base 3, the first element in the highest one. A byte of `q` holds the elements
/// `m + 32 n` (the first 32 bytes) or `160 + m + 16 n` (the other 16) for five `n`; a byte of `h` the elements
/// `240 + m + 4 n` for four. A digit is `⌊3 b / 256⌋` of a byte that was multiplied by `3^n` modulo 256.
/// `x = d (digit − 1)`.
fn tq1_0(block: &mut BlockFields<'_>, out: &mut [f32]) {
    let (low, mid, high) = (block.array::<32>(), block.array::<16>(), block.array::<4>());
    let d = block.f16();
    for (i, x) in out.iter_mut().enumerate() {
        let (byte, n) = match i {
            ..160 => (low[i % 32], i / 32),
            160..240 => (mid[i % 16], (i - 160) / 16),
            _ => (high[i % 4], (i - 240) / 4 % 4),
        };
        let shifted = (0..n).fold(byte, |byte, _| byte.wrapping_mul(3));
        *x = d * (f32::from(((u16::from(shifted) * 3) >> 8) as u8) - 1.0);
    }
}

/// `q[64], d`: 2-bit `q` as in Q2_K. `x = d (q − 1)`.
fn tq2_0(block: &mut BlockFields<'_>, out: &mut [f32]) {
    let quants = block.array::<64>();
    let d = block.f16();
    for (i, x) in out.iter_mut().enumerate() {
        *x = d * (f32::from(two_bits(&quants, i)) - 1.0);
    }
}

fn nibbles(quants: &[u8; 16], out: &mut [f32], value: impl Fn(usize, u8) -> f32) {
    for (i, x) in out.iter_mut().enumerate() {
        *x = value(i, quants[i % 16] >> (4 * (i / 16 % 2)) & 15);
    }
}

fn signed(quants: &[u8], out: &mut [f32], d: f32) {
    for (x, q) in out.iter_mut().zip(quants) {
        *x = d * f32::from(*q as i8);
    }
}

fn fifth_bit(high: u32, i: usize, q: u8) -> u8 {
    q | ((high >> i & 1) as u8) << 4
}

/// The 2-bit field of element `i` of 256: each half of 128 has 32 bytes, element `i % 32` at bit `2 (i / 32 % 4)`.
fn two_bits(quants: &[u8; 64], i: usize) -> u8 {
    quants[i / 128 % 2 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3
}

/// The nibble of element `i` of 256: each 64 elements have 32 bytes, the first 32 low.
fn nibble(quants: &[u8; 128], i: usize) -> u8 {
    quants[i / 64 % 4 * 32 + i % 32] >> (4 * (i / 32 % 2)) & 15
}

/// The 6-bit scale and minimum of sub-block `j` of 8. The first four are in the low six bits of bytes 0–3 and 4–7. Of
/// the other four, the low nibbles are in bytes 8–11, the two high bits on top of bytes 0–3 and 4–7.
fn scale_and_min(packed: &[u8; 12], j: usize) -> (f32, f32) {
    let j = j % 8;
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

/// The reason why elements could not be converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// This build has no code for the type.
    #[error("{0} is not a type this project computes with")]
    Unsupported(TensorType),
    /// The two sides have different numbers of elements, or a part of a block.
    #[error("{stored} bytes of {kind} are not {values} elements")]
    Length {
        /// The stored type.
        kind: TensorType,
        /// Bytes on the stored side.
        stored: usize,
        /// Elements on the side of the floats.
        values: usize,
    },
}
