//! Lanes in four of Arm's registers of 128 bits.

use std::arch::aarch64::*;
use std::arch::asm;

use pulp::{NullaryFnOnce, cast};

use super::operations::{LANES, Lanes, dots_by_units};

/// NEON alone.
pub(super) const PLAIN: u8 = 0;
/// With products of four bytes.
pub(super) const DOTPROD: u8 = 1;
/// With products of matrices of bytes too.
pub(super) const I8MM: u8 = 2;

/// A proof that the machine has NEON, and the products that the parameter names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neon<const KIND: u8>(());

impl<const KIND: u8> Neon<KIND> {
    /// Only for machines with the instructions.
    pub(super) fn new() -> Self {
        Self(())
    }
}

#[target_feature(enable = "neon")]
fn multiplied<F: NullaryFnOnce>(work: F) -> F::Output {
    work.call()
}

#[target_feature(enable = "neon,dotprod")]
fn dotprod<F: NullaryFnOnce>(work: F) -> F::Output {
    work.call()
}

/// Adds the products of four signed bytes with four others.
#[inline(always)]
fn dot_of_four<const KIND: u8>(sum: int32x4_t, quants: int8x16_t, word: int8x16_t) -> int32x4_t {
    // SAFETY: callers have a proof of the instructions.
    #[allow(unsafe_code)]
    unsafe {
        if KIND != PLAIN {
            // The intrinsic is not stable yet.
            let mut sum = sum;
            asm!(
                ".arch_extension dotprod",
                "sdot {sum:v}.4s, {quants:v}.16b, {word:v}.16b",
                sum = inout(vreg) sum,
                quants = in(vreg) quants,
                word = in(vreg) word,
                options(pure, nomem, nostack, preserves_flags),
            );
            return sum;
        }
        // Pairs of products of at most 128 · 127 fit in 16 bits.
        let low = vmull_s8(vget_low_s8(quants), vget_low_s8(word));
        let high = vmull_high_s8(quants, word);
        vpadalq_s16(sum, vpaddq_s16(low, high))
    }
}

/// Adds the products of two rows of eight signed bytes with two others: the first row with both, then the second.
#[inline(always)]
fn products_of_two(sums: int32x4_t, quants: int8x16_t, words: int8x16_t) -> int32x4_t {
    let mut sums = sums;
    // SAFETY: callers have a proof of the instructions.
    #[allow(unsafe_code)]
    unsafe {
        // The intrinsic is not stable yet.
        asm!(
            ".arch_extension i8mm",
            "smmla {sums:v}.4s, {quants:v}.16b, {words:v}.16b",
            sums = inout(vreg) sums,
            quants = in(vreg) quants,
            words = in(vreg) words,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

// SAFETY of all blocks below: a value of the type exists only on machines with the instructions, and every read and
// write has exactly the length of its reference and needs no alignment.
#[allow(unsafe_code)]
impl<const KIND: u8> Lanes for Neon<KIND> {
    type Bytes = [uint8x16_t; 4];
    type Narrow = uint8x16_t;
    type Ints = [int32x4_t; 4];
    type Floats = [float32x4_t; 4];
    type Part = float32x4_t;

    const PARTS: usize = 4;
    const PART_SUMS: usize = 24;
    const NAME: &'static str = match KIND {
        PLAIN => "neon",
        DOTPROD => "neon-dotprod",
        _ => "neon-i8mm",
    };
    const MOST_ROWS: usize = 4;
    const PAIRS: bool = false;
    const STRIP: usize = 4;
    const TWO_TILES: bool = false;
    const WORTH_UNPACKING: usize = 12;
    const SUMS: usize = 6;
    const BIASED: bool = false;

    #[inline(always)]
    fn vectorize<F: NullaryFnOnce>(self, work: F) -> F::Output {
        unsafe { if KIND == PLAIN { multiplied(work) } else { dotprod(work) } }
    }

    #[inline(always)]
    fn load(self, bytes: &[u8; 64]) -> [uint8x16_t; 4] {
        cast(*bytes)
    }

    #[inline(always)]
    fn store_bytes(self, bytes: [uint8x16_t; 4], into: &mut [u8; 64]) {
        *into = cast(bytes);
    }

    #[inline(always)]
    fn splat(self, byte: u8) -> [uint8x16_t; 4] {
        unsafe { [vdupq_n_u8(byte); 4] }
    }

    #[inline(always)]
    fn and(self, a: [uint8x16_t; 4], b: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
        let mut out = a;
        for i in 0..4 {
            out[i] = unsafe { vandq_u8(a[i], b[i]) };
        }
        out
    }

    #[inline(always)]
    fn or(self, a: [uint8x16_t; 4], b: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
        let mut out = a;
        for i in 0..4 {
            out[i] = unsafe { vorrq_u8(a[i], b[i]) };
        }
        out
    }

    #[inline(always)]
    fn xor(self, a: [uint8x16_t; 4], b: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
        let mut out = a;
        for i in 0..4 {
            out[i] = unsafe { veorq_u8(a[i], b[i]) };
        }
        out
    }

    #[inline(always)]
    fn add_bytes(self, a: [uint8x16_t; 4], b: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
        let mut out = a;
        for i in 0..4 {
            out[i] = unsafe { vaddq_u8(a[i], b[i]) };
        }
        out
    }

    #[inline(always)]
    fn shift_right(self, bytes: [uint8x16_t; 4], bits: u32, mask: u8) -> [uint8x16_t; 4] {
        let mut out = bytes;
        for i in 0..4 {
            out[i] = self.narrow_right(bytes[i], bits, mask);
        }
        out
    }

    #[inline(always)]
    fn shift_left(self, bytes: [uint8x16_t; 4], bits: u32, mask: u8) -> [uint8x16_t; 4] {
        let mut out = bytes;
        for i in 0..4 {
            out[i] = self.narrow_left(bytes[i], bits, mask);
        }
        out
    }

    #[inline(always)]
    fn look_up(self, numbers: [uint8x16_t; 4], table: &[u8; 16]) -> [uint8x16_t; 4] {
        let mut out = numbers;
        for i in 0..4 {
            out[i] = unsafe { vqtbl1q_u8(cast(*table), numbers[i]) };
        }
        out
    }

    #[inline(always)]
    fn thirds(self, bytes: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
        let mut out = bytes;
        for i in 0..4 {
            out[i] = unsafe {
                let first = vminq_u8(vqsubq_u8(bytes[i], vdupq_n_u8(85)), vdupq_n_u8(1));
                let second = vminq_u8(vqsubq_u8(bytes[i], vdupq_n_u8(170)), vdupq_n_u8(1));
                vaddq_u8(first, second)
            };
        }
        out
    }

    #[inline(always)]
    fn load_narrow(self, bytes: &[u8; LANES]) -> uint8x16_t {
        cast(*bytes)
    }

    #[inline(always)]
    fn narrow_right(self, bytes: uint8x16_t, bits: u32, mask: u8) -> uint8x16_t {
        unsafe { vandq_u8(vshlq_u8(bytes, vdupq_n_s8(-(bits as i8))), vdupq_n_u8(mask)) }
    }

    #[inline(always)]
    fn narrow_left(self, bytes: uint8x16_t, bits: u32, mask: u8) -> uint8x16_t {
        unsafe { vandq_u8(vshlq_u8(bytes, vdupq_n_s8(bits as i8)), vdupq_n_u8(mask)) }
    }

    #[inline(always)]
    fn narrow_or(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        unsafe { vorrq_u8(a, b) }
    }

    #[inline(always)]
    fn unsigned(self, bytes: uint8x16_t) -> [int32x4_t; 4] {
        unsafe {
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            [
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
                vreinterpretq_s32_u32(vmovl_high_u16(low)),
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
                vreinterpretq_s32_u32(vmovl_high_u16(high)),
            ]
        }
    }

    #[inline(always)]
    fn signed(self, bytes: uint8x16_t) -> [int32x4_t; 4] {
        unsafe {
            let bytes = vreinterpretq_s8_u8(bytes);
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            [vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)]
        }
    }

    #[inline(always)]
    fn splat_int(self, value: i32) -> [int32x4_t; 4] {
        unsafe { [vdupq_n_s32(value); 4] }
    }

    #[inline(always)]
    fn add_ints(self, a: [int32x4_t; 4], b: [int32x4_t; 4]) -> [int32x4_t; 4] {
        let mut out = a;
        for i in 0..4 {
            out[i] = unsafe { vaddq_s32(a[i], b[i]) };
        }
        out
    }

    #[inline(always)]
    fn dot(self, sum: [int32x4_t; 4], quants: [[uint8x16_t; 4]; 2], words: [i32; 2]) -> [int32x4_t; 4] {
        // Quants up to 63 are the same numbers with a sign.
        self.dot_wide(sum, quants, words)
    }

    #[inline(always)]
    fn dot_wide(self, sum: [int32x4_t; 4], quants: [[uint8x16_t; 4]; 2], words: [i32; 2]) -> [int32x4_t; 4] {
        let mut sum = sum;
        for unit in 0..2 {
            let word = unsafe { vreinterpretq_s8_s32(vdupq_n_s32(words[unit])) };
            for i in 0..4 {
                let quants = unsafe { vreinterpretq_s8_u8(quants[unit][i]) };
                sum[i] = dot_of_four::<KIND>(sum[i], quants, word);
            }
        }
        sum
    }

    /// With `smmla`, two lanes and two rows of activations at a time, eight elements of each.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "the indices run over several arrays at once")]
    fn dots<const TILES: usize, const R: usize, const MOST: u8>(
        self,
        starts: &[i32; R],
        quants: [&[[u8; 64]]; TILES],
        words: &[[i32; 8]; R],
        first: usize,
    ) -> [[[int32x4_t; 4]; R]; TILES] {
        if KIND != I8MM || !R.is_multiple_of(2) {
            return dots_by_units::<Self, TILES, R, MOST>(self, starts, quants, words, first);
        }
        let mut all = [[self.splat_int(0); R]; TILES];
        for tile in 0..TILES {
            // The sums of four lanes with two rows: [lanes 0 and 1, lanes 2 and 3].
            let mut sums = [[[unsafe { vdupq_n_s32(0) }; 2]; 4]; R];
            for r in (0..R).step_by(2) {
                let two: int32x4_t = cast([starts[r], starts[r + 1], starts[r], starts[r + 1]]);
                sums[r / 2] = [[two; 2]; 4];
            }
            for (two, quants) in quants[tile].as_chunks::<2>().0.iter().enumerate() {
                let quants = [self.load(&quants[0]), self.load(&quants[1])];
                let word = first + 2 * two;
                for r in (0..R).step_by(2) {
                    let (one, other) = (words[r], words[r + 1]);
                    let words: int8x16_t = cast([one[word], one[word + 1], other[word], other[word + 1]]);
                    for lanes in 0..4 {
                        let (low, high) = unsafe {
                            let (a, b) =
                                (vreinterpretq_s32_u8(quants[0][lanes]), vreinterpretq_s32_u8(quants[1][lanes]));
                            (vreinterpretq_s8_s32(vzip1q_s32(a, b)), vreinterpretq_s8_s32(vzip2q_s32(a, b)))
                        };
                        let sums = &mut sums[r / 2][lanes];
                        *sums = [products_of_two(sums[0], low, words), products_of_two(sums[1], high, words)];
                    }
                }
            }
            for r in (0..R).step_by(2) {
                for lanes in 0..4 {
                    let [low, high] = sums[r / 2][lanes];
                    // Of each pair the first number belongs to the first row.
                    all[tile][r][lanes] = unsafe { vuzp1q_s32(low, high) };
                    all[tile][r + 1][lanes] = unsafe { vuzp2q_s32(low, high) };
                }
            }
        }
        all
    }

    #[inline(always)]
    fn load_floats(self, floats: &[f32; LANES]) -> [float32x4_t; 4] {
        cast(*floats)
    }

    #[inline(always)]
    fn brains(self, bits: &[u16; LANES]) -> [float32x4_t; 4] {
        let bits: [uint16x4_t; 4] = cast(*bits);
        let mut out = self.splat_float(0.0);
        for i in 0..4 {
            out[i] = unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(bits[i])) };
        }
        out
    }

    #[inline(always)]
    fn splat_float(self, value: f32) -> [float32x4_t; 4] {
        unsafe { [vdupq_n_f32(value); 4] }
    }

    #[inline(always)]
    fn floats(self, ints: [int32x4_t; 4]) -> [float32x4_t; 4] {
        let mut out = self.splat_float(0.0);
        for i in 0..4 {
            out[i] = unsafe { vcvtq_f32_s32(ints[i]) };
        }
        out
    }

    #[inline(always)]
    fn halves(self, bits: &[u8; 2 * LANES]) -> [float32x4_t; 4] {
        let bits: [uint16x4_t; 4] = cast(*bits);
        let mut out = self.splat_float(0.0);
        for i in 0..4 {
            // The intrinsic is not stable yet.
            unsafe {
                asm!(
                    "fcvtl {wide:v}.4s, {narrow:v}.4h",
                    wide = out(vreg) out[i],
                    narrow = in(vreg) bits[i],
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
        }
        out
    }

    #[inline(always)]
    fn eighths(self, bytes: &[u8; LANES]) -> [float32x4_t; 4] {
        let [low, high]: [int8x8_t; 2] = cast(*bytes);
        unsafe {
            // Copies of the sign above the seven other bits are masked out, but for the uppermost.
            let mask = vdupq_n_s16(0xbf80_u16.cast_signed());
            let low = vandq_s16(vshlq_n_s16::<7>(vmovl_s8(low)), mask);
            let high = vandq_s16(vshlq_n_s16::<7>(vmovl_s8(high)), mask);
            self.halves(&cast([low, high]))
        }
    }

    #[inline(always)]
    fn powers(self, exponents: uint8x16_t) -> [float32x4_t; 4] {
        // Two factors are normal numbers where their product is not: half of the exponent, and the rest of it.
        let (all, half) = (self.unsigned(exponents), self.unsigned(self.narrow_right(exponents, 1, 127)));
        let mut out = self.splat_float(0.0);
        for i in 0..4 {
            out[i] = unsafe {
                let bias = vdupq_n_s32(63);
                let one = vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(half[i], bias)));
                let rest = vsubq_s32(all[i], half[i]);
                vmulq_f32(one, vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(rest, bias))))
            };
        }
        out
    }

    #[inline(always)]
    fn mul(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        let mut out = a;
        for i in 0..4 {
            out[i] = unsafe { vmulq_f32(a[i], b[i]) };
        }
        out
    }

    #[inline(always)]
    fn mul_add(self, a: [float32x4_t; 4], b: [float32x4_t; 4], c: [float32x4_t; 4]) -> [float32x4_t; 4] {
        let mut out = a;
        for i in 0..4 {
            out[i] = unsafe { vfmaq_f32(c[i], a[i], b[i]) };
        }
        out
    }

    #[inline(always)]
    fn neg_mul_add(self, a: [float32x4_t; 4], b: [float32x4_t; 4], c: [float32x4_t; 4]) -> [float32x4_t; 4] {
        let mut out = a;
        for i in 0..4 {
            out[i] = unsafe { vfmsq_f32(c[i], a[i], b[i]) };
        }
        out
    }

    #[inline(always)]
    fn store(self, floats: [float32x4_t; 4], into: &mut [f32; LANES]) {
        *into = cast(floats);
    }

    #[inline(always)]
    fn part(self, floats: [float32x4_t; 4], at: usize) -> float32x4_t {
        floats[at]
    }

    #[inline(always)]
    fn load_part(self, floats: &[f32]) -> float32x4_t {
        unsafe { vld1q_f32(floats[..4].as_ptr()) }
    }

    #[inline(always)]
    fn mul_add_part(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    fn store_part(self, part: float32x4_t, into: &mut [f32]) {
        unsafe { vst1q_f32(into[..4].as_mut_ptr(), part) }
    }

    #[inline(always)]
    fn sum(self, floats: [float32x4_t; 4]) -> f32 {
        let [a, b, c, d] = floats;
        unsafe {
            let four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // A prefetch reads nothing and accepts any address.
        unsafe {
            asm!(
                "prfm pldl2keep, [{address}]",
                address = in(reg) address,
                options(nostack, preserves_flags, readonly),
            );
        }
    }
}
