//! Lanes in plain code, for every processor, and as the twin that the others are compared with.

use std::array::from_fn;

use half::f16;
use pulp::NullaryFnOnce;

use super::operations::{LANES, Lanes};

/// Plain code needs no proof.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

// Operations that are loops of their own are functions: a copy of them in every kernel is a third of the crate's code.
impl Lanes for Portable {
    type Bytes = [u8; 64];
    type Narrow = [u8; LANES];
    type Ints = [i32; LANES];
    type Floats = [f32; LANES];
    type Part = [f32; LANES];

    const PARTS: usize = 1;
    const PART_SUMS: usize = 12;
    const NAME: &'static str = "portable";
    const MOST_ROWS: usize = 1;
    const PAIRS: bool = false;
    const STRIP: usize = 1;
    const TWO_TILES: bool = false;
    const WORTH_UNPACKING: usize = 8;
    const SUMS: usize = 2;
    const BIASED: bool = false;

    #[inline(always)]
    fn vectorize<F: NullaryFnOnce>(self, work: F) -> F::Output {
        work.call()
    }

    #[inline(always)]
    fn load(self, bytes: &[u8; 64]) -> [u8; 64] {
        *bytes
    }

    #[inline(always)]
    fn store_bytes(self, bytes: [u8; 64], into: &mut [u8; 64]) {
        *into = bytes;
    }

    #[inline(always)]
    fn splat(self, byte: u8) -> [u8; 64] {
        [byte; 64]
    }

    #[inline(always)]
    fn and(self, a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        from_fn(|i| a[i] & b[i])
    }

    #[inline(always)]
    fn or(self, a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn xor(self, a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        from_fn(|i| a[i] ^ b[i])
    }

    #[inline(always)]
    fn add_bytes(self, a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        from_fn(|i| a[i].wrapping_add(b[i]))
    }

    #[inline(never)]
    fn shift_right(self, bytes: [u8; 64], bits: u32, mask: u8) -> [u8; 64] {
        bytes.map(|byte| byte >> bits & mask)
    }

    #[inline(never)]
    fn shift_left(self, bytes: [u8; 64], bits: u32, mask: u8) -> [u8; 64] {
        bytes.map(|byte| byte << bits & mask)
    }

    #[inline(never)]
    fn look_up(self, numbers: [u8; 64], table: &[u8; 16]) -> [u8; 64] {
        numbers.map(|number| table[usize::from(number & 15)])
    }

    #[inline(never)]
    fn thirds(self, bytes: [u8; 64]) -> [u8; 64] {
        bytes.map(|byte| ((u16::from(byte) * 3) >> 8) as u8)
    }

    #[inline(always)]
    fn load_narrow(self, bytes: &[u8; LANES]) -> [u8; LANES] {
        *bytes
    }

    #[inline(never)]
    fn narrow_right(self, bytes: [u8; LANES], bits: u32, mask: u8) -> [u8; LANES] {
        bytes.map(|byte| byte >> bits & mask)
    }

    #[inline(never)]
    fn narrow_left(self, bytes: [u8; LANES], bits: u32, mask: u8) -> [u8; LANES] {
        bytes.map(|byte| byte << bits & mask)
    }

    #[inline(always)]
    fn narrow_or(self, a: [u8; LANES], b: [u8; LANES]) -> [u8; LANES] {
        from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn unsigned(self, bytes: [u8; LANES]) -> [i32; LANES] {
        bytes.map(i32::from)
    }

    #[inline(always)]
    fn signed(self, bytes: [u8; LANES]) -> [i32; LANES] {
        bytes.map(|byte| i32::from(byte.cast_signed()))
    }

    #[inline(always)]
    fn splat_int(self, value: i32) -> [i32; LANES] {
        [value; LANES]
    }

    #[inline(always)]
    fn add_ints(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        from_fn(|i| a[i] + b[i])
    }

    #[inline(never)]
    fn dot(self, sum: [i32; LANES], quants: [[u8; 64]; 2], words: [i32; 2]) -> [i32; LANES] {
        let mut sum = sum;
        for (quants, word) in quants.iter().zip(words) {
            let word = word.to_le_bytes().map(|byte| i16::from(byte.cast_signed()));
            for (sum, quants) in sum.iter_mut().zip(quants.as_chunks::<4>().0) {
                for (quant, x) in quants.iter().zip(word) {
                    *sum += i32::from(i16::from(*quant) * x);
                }
            }
        }
        sum
    }

    #[inline(never)]
    fn dot_wide(self, sum: [i32; LANES], quants: [[u8; 64]; 2], words: [i32; 2]) -> [i32; LANES] {
        let mut sum = sum;
        for (quants, word) in quants.iter().zip(words) {
            let word = word.to_le_bytes().map(|byte| i16::from(byte.cast_signed()));
            for (sum, quants) in sum.iter_mut().zip(quants.as_chunks::<4>().0) {
                for (quant, x) in quants.iter().zip(word) {
                    *sum += i32::from(i16::from(quant.cast_signed()) * x);
                }
            }
        }
        sum
    }

    #[inline(always)]
    fn load_floats(self, floats: &[f32; LANES]) -> [f32; LANES] {
        *floats
    }

    #[inline(never)]
    fn brains(self, bits: &[u16; LANES]) -> [f32; LANES] {
        bits.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }

    #[inline(always)]
    fn splat_float(self, value: f32) -> [f32; LANES] {
        [value; LANES]
    }

    #[inline(always)]
    fn floats(self, ints: [i32; LANES]) -> [f32; LANES] {
        ints.map(|int| int as f32)
    }

    #[inline(never)]
    fn halves(self, bits: &[u8; 2 * LANES]) -> [f32; LANES] {
        from_fn(|i| f16::from_le_bytes([bits[2 * i], bits[2 * i + 1]]).to_f32())
    }

    #[inline(never)]
    fn eighths(self, bytes: &[u8; LANES]) -> [f32; LANES] {
        bytes.map(|byte| f16::from_bits(u16::from(byte & 0x80) << 8 | u16::from(byte & 0x7f) << 7).to_f32())
    }

    #[inline(never)]
    fn powers(self, exponents: [u8; LANES]) -> [f32; LANES] {
        exponents.map(model_boss_weights::gguf::power_of_two)
    }

    #[inline(always)]
    fn mul(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn part(self, floats: [f32; LANES], _: usize) -> [f32; LANES] {
        floats
    }

    #[inline(always)]
    fn load_part(self, floats: &[f32]) -> [f32; LANES] {
        from_fn(|i| floats[i])
    }

    #[inline(always)]
    fn mul_add_part(self, a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        self.mul_add(a, b, c)
    }

    #[inline(always)]
    fn store_part(self, part: [f32; LANES], into: &mut [f32]) {
        into[..LANES].copy_from_slice(&part);
    }

    #[inline(never)]
    fn mul_add(self, a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(never)]
    fn neg_mul_add(self, a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        from_fn(|i| (-a[i]).mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn store(self, floats: [f32; LANES], into: &mut [f32; LANES]) {
        *into = floats;
    }

    #[inline(never)]
    fn sum(self, mut floats: [f32; LANES]) -> f32 {
        let mut half = LANES / 2;
        while half > 0 {
            for lane in 0..half {
                floats[lane] += floats[lane + half];
            }
            half /= 2;
        }
        floats[0]
    }

    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
}
