//! Lanes in one register of 512 bits.

use std::arch::x86_64::*;

use pulp::{NullaryFnOnce, cast};

use super::amx;
use super::avx2::together;
use super::operations::{LANES, Lanes, SIGNED};

/// Products of bytes by multiplication and addition: AVX-512 (BW).
pub(super) const MULTIPLIED: u8 = 0;
/// Products of four bytes by one instruction: AVX-512 VNNI.
pub(super) const VNNI: u8 = 1;
/// The same, and matrices of bytes by AMX where many rows of activations are multiplied.
pub(super) const TILES: u8 = 2;
/// As [`TILES`], with plain code in place of AMX's instructions.
#[cfg(test)]
pub(super) const TILES_IN_SOFTWARE: u8 = 3;

/// A proof that the machine has AVX-512 (F, BW, VL), and the instructions that the parameter says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512<const KIND: u8>(());

impl<const KIND: u8> Avx512<KIND> {
    const HAS_VNNI: bool = KIND >= VNNI;
    const HAS_TILES: bool = KIND >= TILES;

    /// Only for machines with the instructions.
    pub(super) fn new() -> Self {
        Self(())
    }

    /// The sums of products of a piece, by AMX. It runs within [`Lanes::with_tiles`].
    #[inline(always)]
    #[allow(unsafe_code)]
    fn tile(self, quants: &[[u8; 64]], words: &[[i32; 8]; amx::ROWS], first: usize) -> amx::TileSums {
        let mut sums = amx::TileSums([[0; LANES]; amx::ROWS]);
        if KIND == TILES {
            // SAFETY: callers of `dots` are run by `with_tiles`, which sets the registers.
            unsafe { amx::product(quants, words, first, &mut sums) };
        } else {
            amx::product_in_software(quants, words, first, &mut sums);
        }
        sums
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
fn multiplied<F: NullaryFnOnce>(work: F) -> F::Output {
    work.call()
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn vnni<F: NullaryFnOnce>(work: F) -> F::Output {
    work.call()
}

/// `2^(e − 64)`.
#[inline(always)]
fn power(exponents: __m512i) -> __m512 {
    // SAFETY: callers have a proof of the instructions.
    #[allow(unsafe_code)]
    unsafe {
        _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(exponents, _mm512_set1_epi32(63))))
    }
}

// SAFETY of all blocks below: a value of the type exists only on machines with the instructions, and every read and
// write has exactly the length of its reference and needs no alignment.
#[allow(unsafe_code)]
impl<const KIND: u8> Lanes for Avx512<KIND> {
    type Bytes = __m512i;
    type Narrow = __m128i;
    type Ints = __m512i;
    type Floats = __m512;
    type Part = __m512;

    const PARTS: usize = 1;
    const PART_SUMS: usize = 24;
    const NAME: &'static str = match KIND {
        MULTIPLIED => "avx512",
        VNNI => "avx512-vnni",
        _ => "amx",
    };
    const MOST_ROWS: usize = 8;
    const PAIRS: bool = true;
    const STRIP: usize = if Self::HAS_TILES { amx::ROWS } else { 6 };
    const TWO_TILES: bool = !Self::HAS_TILES;
    const WORTH_UNPACKING: usize = 16;
    const SUMS: usize = 24;
    const BIASED: bool = Self::HAS_VNNI;

    #[inline(always)]
    fn vectorize<F: NullaryFnOnce>(self, work: F) -> F::Output {
        unsafe { if Self::HAS_VNNI { vnni(work) } else { multiplied(work) } }
    }

    #[inline(always)]
    fn load(self, bytes: &[u8; 64]) -> __m512i {
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_bytes(self, bytes: __m512i, into: &mut [u8; 64]) {
        unsafe { _mm512_storeu_si512(into.as_mut_ptr().cast(), bytes) }
    }

    #[inline(always)]
    fn splat(self, byte: u8) -> __m512i {
        unsafe { _mm512_set1_epi8(byte.cast_signed()) }
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_xor_si512(a, b) }
    }

    #[inline(always)]
    fn add_bytes(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi8(a, b) }
    }

    #[inline(always)]
    fn shift_right(self, bytes: __m512i, bits: u32, mask: u8) -> __m512i {
        unsafe {
            let shifted = _mm512_srl_epi16(bytes, _mm_cvtsi32_si128(bits.cast_signed()));
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask.cast_signed()))
        }
    }

    #[inline(always)]
    fn shift_left(self, bytes: __m512i, bits: u32, mask: u8) -> __m512i {
        unsafe {
            let shifted = _mm512_sll_epi16(bytes, _mm_cvtsi32_si128(bits.cast_signed()));
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask.cast_signed()))
        }
    }

    #[inline(always)]
    fn look_up(self, numbers: __m512i, table: &[u8; 16]) -> __m512i {
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(cast(*table)), numbers) }
    }

    #[inline(always)]
    fn thirds(self, bytes: __m512i) -> __m512i {
        unsafe {
            let one = _mm512_set1_epi8(1);
            let first = _mm512_min_epu8(_mm512_subs_epu8(bytes, _mm512_set1_epi8(85)), one);
            let second = _mm512_min_epu8(_mm512_subs_epu8(bytes, _mm512_set1_epi8(170_u8.cast_signed())), one);
            _mm512_add_epi8(first, second)
        }
    }

    #[inline(always)]
    fn load_narrow(self, bytes: &[u8; LANES]) -> __m128i {
        cast(*bytes)
    }

    #[inline(always)]
    fn narrow_right(self, bytes: __m128i, bits: u32, mask: u8) -> __m128i {
        unsafe {
            let shifted = _mm_srl_epi16(bytes, _mm_cvtsi32_si128(bits.cast_signed()));
            _mm_and_si128(shifted, _mm_set1_epi8(mask.cast_signed()))
        }
    }

    #[inline(always)]
    fn narrow_left(self, bytes: __m128i, bits: u32, mask: u8) -> __m128i {
        unsafe {
            let shifted = _mm_sll_epi16(bytes, _mm_cvtsi32_si128(bits.cast_signed()));
            _mm_and_si128(shifted, _mm_set1_epi8(mask.cast_signed()))
        }
    }

    #[inline(always)]
    fn narrow_or(self, a: __m128i, b: __m128i) -> __m128i {
        unsafe { _mm_or_si128(a, b) }
    }

    #[inline(always)]
    fn unsigned(self, bytes: __m128i) -> __m512i {
        unsafe { _mm512_cvtepu8_epi32(bytes) }
    }

    #[inline(always)]
    fn signed(self, bytes: __m128i) -> __m512i {
        unsafe { _mm512_cvtepi8_epi32(bytes) }
    }

    #[inline(always)]
    fn splat_int(self, value: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(value) }
    }

    #[inline(always)]
    fn add_ints(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn dot(self, sum: __m512i, [a, b]: [__m512i; 2], [x, y]: [i32; 2]) -> __m512i {
        unsafe {
            let (x, y) = (_mm512_set1_epi32(x), _mm512_set1_epi32(y));
            if Self::HAS_VNNI {
                return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, a, x), b, y);
            }
            // Four products of at most 63 · 127 fit in 16 bits.
            let pairs = _mm512_add_epi16(_mm512_maddubs_epi16(a, x), _mm512_maddubs_epi16(b, y));
            _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
        }
    }

    #[inline(always)]
    fn dot_wide(self, sum: __m512i, quants: [__m512i; 2], words: [i32; 2]) -> __m512i {
        if Self::HAS_VNNI {
            return self.dot(sum, quants, words);
        }
        unsafe {
            let mut sum = sum;
            for unit in 0..2 {
                // The instruction multiplies unsigned with signed bytes, so signs of quants move to the other side.
                // Two products of at most 128 · 127 fit in 16 bits.
                let (quants, word) = (quants[unit], _mm512_set1_epi32(words[unit]));
                let negative = _mm512_movepi8_mask(quants);
                let word = _mm512_mask_sub_epi8(word, negative, _mm512_setzero_si512(), word);
                let pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(quants), word);
                sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
            }
            sum
        }
    }

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "the indices run over several arrays at once")]
    fn dots<const TILES: usize, const R: usize, const MOST: u8>(
        self,
        starts: &[i32; R],
        quants: [&[[u8; 64]]; TILES],
        words: &[[i32; 8]; R],
        first: usize,
    ) -> [[__m512i; R]; TILES] {
        unsafe {
            let zero = _mm512_setzero_si512();
            let mut sums = [[zero; R]; TILES];
            if Self::HAS_TILES
                && let Ok(rows) = words.as_slice().try_into()
            {
                for tile in 0..TILES {
                    let products = self.tile(quants[tile], rows, first);
                    for (r, row) in products.0.iter().enumerate() {
                        let products = _mm512_load_si512(row.as_ptr().cast());
                        sums[tile][r] = _mm512_add_epi32(products, _mm512_set1_epi32(starts[r]));
                    }
                }
                return sums;
            }
            for r in 0..R {
                let start = _mm512_set1_epi32(starts[r]);
                for tile in 0..TILES {
                    sums[tile][r] = start;
                }
            }
            let units = quants[0].len();
            if Self::HAS_VNNI {
                for unit in 0..units {
                    let mut of_tiles = [zero; TILES];
                    for tile in 0..TILES {
                        of_tiles[tile] = self.load(&quants[tile][unit]);
                    }
                    for r in 0..R {
                        let word = _mm512_set1_epi32(words[r][first + unit]);
                        for tile in 0..TILES {
                            sums[tile][r] = _mm512_dpbusd_epi32(sums[tile][r], of_tiles[tile], word);
                        }
                    }
                }
                return sums;
            }
            // Sums of two products each fit in 16 bits, and so do several of them added.
            let together = together(MOST);
            let one = _mm512_set1_epi16(1);
            for begin in (0..units).step_by(together) {
                let mut pairs = [[zero; R]; TILES];
                for unit in begin..units.min(begin + together) {
                    let mut of_tiles = [zero; TILES];
                    for tile in 0..TILES {
                        of_tiles[tile] = self.load(&quants[tile][unit]);
                    }
                    for r in 0..R {
                        let word = _mm512_set1_epi32(words[r][first + unit]);
                        for tile in 0..TILES {
                            let (mut quants, mut word) = (of_tiles[tile], word);
                            if MOST == SIGNED {
                                let negative = _mm512_movepi8_mask(quants);
                                word = _mm512_mask_sub_epi8(word, negative, zero, word);
                                quants = _mm512_abs_epi8(quants);
                            }
                            pairs[tile][r] = _mm512_add_epi16(pairs[tile][r], _mm512_maddubs_epi16(quants, word));
                        }
                    }
                }
                for tile in 0..TILES {
                    for r in 0..R {
                        let wide = _mm512_madd_epi16(pairs[tile][r], one);
                        sums[tile][r] = _mm512_add_epi32(sums[tile][r], wide);
                    }
                }
            }
            sums
        }
    }

    #[inline(always)]
    fn with_tiles<F: NullaryFnOnce>(self, work: F) -> F::Output {
        if KIND == TILES {
            // The set was chosen only if the registers were granted.
            return unsafe { amx::with_registers(|| self.vectorize(work)) };
        }
        self.vectorize(work)
    }

    #[inline(always)]
    fn load_floats(self, floats: &[f32; LANES]) -> __m512 {
        unsafe { _mm512_loadu_ps(floats.as_ptr()) }
    }

    #[inline(always)]
    fn brains(self, bits: &[u16; LANES]) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(cast(*bits)))) }
    }

    #[inline(always)]
    fn splat_float(self, value: f32) -> __m512 {
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn floats(self, ints: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(ints) }
    }

    #[inline(always)]
    fn halves(self, bits: &[u8; 2 * LANES]) -> __m512 {
        unsafe { _mm512_cvtph_ps(cast(*bits)) }
    }

    #[inline(always)]
    fn eighths(self, bytes: &[u8; LANES]) -> __m512 {
        unsafe {
            // Copies of the sign above the seven other bits are masked out, but for the uppermost.
            let wide = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(cast(*bytes)));
            _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(0xbf80_u16.cast_signed())))
        }
    }

    #[inline(always)]
    fn powers(self, exponents: __m128i) -> __m512 {
        // Two factors are normal numbers where their product is not: half of the exponent, and the rest of it.
        unsafe {
            let (all, half) = (self.unsigned(exponents), self.unsigned(self.narrow_right(exponents, 1, 127)));
            _mm512_mul_ps(power(half), power(_mm512_sub_epi32(all, half)))
        }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn neg_mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn store(self, floats: __m512, into: &mut [f32; LANES]) {
        unsafe { _mm512_storeu_ps(into.as_mut_ptr(), floats) }
    }

    #[inline(always)]
    fn part(self, floats: __m512, _: usize) -> __m512 {
        floats
    }

    #[inline(always)]
    fn load_part(self, floats: &[f32]) -> __m512 {
        unsafe { _mm512_loadu_ps(floats[..LANES].as_ptr()) }
    }

    #[inline(always)]
    fn mul_add_part(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        self.mul_add(a, b, c)
    }

    #[inline(always)]
    fn store_part(self, part: __m512, into: &mut [f32]) {
        unsafe { _mm512_storeu_ps(into[..LANES].as_mut_ptr(), part) }
    }

    #[inline(always)]
    fn sum(self, floats: __m512) -> f32 {
        let upper = unsafe { _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(floats))) };
        super::avx2::sum_of(unsafe { _mm256_add_ps(_mm512_castps512_ps256(floats), upper) })
    }

    #[inline(always)]
    fn four_sums(self, [a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        unsafe {
            let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b));
            let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xEE>(c, d));
            // Four lanes of each vector, one vector behind the other.
            let four = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xDD>(ab, cd));
            let two = _mm512_add_ps(four, _mm512_permute_ps::<0b0000_1110>(four));
            let one = _mm512_add_ps(two, _mm512_permute_ps::<1>(two));
            let mut sums = [0.0; LANES];
            self.store(one, &mut sums);
            [sums[0], sums[4], sums[8], sums[12]]
        }
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // A prefetch reads nothing and accepts any address.
        #[allow(unused_unsafe, reason = "newer compilers do not need it")]
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(address.cast());
        }
    }
}
