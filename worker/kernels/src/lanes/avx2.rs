//! Lanes in two registers of 256 bits.

use std::arch::x86_64::*;

use pulp::{NullaryFnOnce, cast};

use super::operations::{LANES, Lanes, SIGNED};

/// Bytes are multiplied by AVX2, in pairs of 16 bits.
pub(super) const MULTIPLIED: u8 = 0;

/// Bytes are multiplied by AVX-VNNI.
pub(super) const VNNI: u8 = 1;

/// Bytes are multiplied by AVX-512's VNNI in 256 bits: what AVX-VNNI computes, in another encoding. Tests use it on
/// machines without AVX-VNNI.
#[cfg(test)]
pub(super) const VNNI_OF_512: u8 = 2;

/// A proof that the machine has AVX2, FMA and F16C, and what multiplies bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2<const DOT: u8>(());

impl<const DOT: u8> Avx2<DOT> {
    /// Only for machines with the instructions.
    pub(super) fn new() -> Self {
        Self(())
    }
}

type Pair = [__m256i; 2];

#[target_feature(enable = "avx2,fma,f16c")]
fn multiplied<F: NullaryFnOnce>(work: F) -> F::Output {
    work.call()
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn vnni<F: NullaryFnOnce>(work: F) -> F::Output {
    work.call()
}

#[cfg(test)]
#[target_feature(enable = "avx2,fma,f16c,avx512vl,avx512vnni")]
fn vnni_of_512<F: NullaryFnOnce>(work: F) -> F::Output {
    work.call()
}

/// Adds the products of four unsigned bytes with four signed ones.
#[inline(always)]
fn dot_of_four<const DOT: u8>(sum: __m256i, quants: __m256i, word: __m256i) -> __m256i {
    // SAFETY: callers have a proof of the instructions.
    #[allow(unsafe_code)]
    unsafe {
        match DOT {
            #[cfg(test)]
            VNNI_OF_512 => _mm256_dpbusd_epi32(sum, quants, word),
            _ => _mm256_dpbusd_avx_epi32(sum, quants, word),
        }
    }
}

/// The sum of eight lanes, in the order of [`Lanes::sum`].
#[inline(always)]
pub(super) fn sum_of(floats: __m256) -> f32 {
    // SAFETY: callers have a proof of the instructions.
    #[allow(unsafe_code)]
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(floats), _mm256_extractf128_ps::<1>(floats));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// The sums of four times eight lanes, each in the order of [`Lanes::sum`].
#[inline(always)]
pub(super) fn four_sums_of([a, b, c, d]: [__m256; 4]) -> [f32; 4] {
    // SAFETY: callers have a proof of the instructions.
    #[allow(unsafe_code)]
    unsafe {
        let ab = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
        let cd = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(c, d), _mm256_permute2f128_ps::<0x31>(c, d));
        let two = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xEE>(ab, cd));
        let one = _mm256_add_ps(two, _mm256_movehdup_ps(two));
        // Now `a` and `c` are the even lanes of the lower half, `b` and `d` those of the upper.
        let sums: [f32; 8] = cast(one);
        [sums[0], sums[4], sums[2], sums[6]]
    }
}

/// Units of quants up to this number whose sums of two products can be added in 16 bits.
pub(super) const fn together(most: u8) -> usize {
    match most {
        SIGNED => 1,
        32.. => 2,
        16.. => 4,
        _ => 8,
    }
}

/// `2^(e − 64)`.
#[inline(always)]
fn power(exponents: __m256i) -> __m256 {
    // SAFETY: callers have a proof of the instructions.
    #[allow(unsafe_code)]
    unsafe {
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(exponents, _mm256_set1_epi32(63))))
    }
}

// SAFETY of all blocks below: a value of the type exists only on machines with the instructions, and every read and
// write has exactly the length of its reference and needs no alignment.
#[allow(unsafe_code)]
impl<const DOT: u8> Lanes for Avx2<DOT> {
    type Bytes = Pair;
    type Narrow = __m128i;
    type Ints = Pair;
    type Floats = [__m256; 2];
    type Part = __m256;

    const PARTS: usize = 2;
    const PART_SUMS: usize = 12;
    const NAME: &'static str = if DOT == MULTIPLIED { "avx2" } else { "avx-vnni" };
    const MOST_ROWS: usize = 4;
    const PAIRS: bool = false;
    const STRIP: usize = 4;
    const TWO_TILES: bool = false;
    const WORTH_UNPACKING: usize = 12;
    const SUMS: usize = 6;
    const BIASED: bool = DOT != MULTIPLIED;

    #[inline(always)]
    fn vectorize<F: NullaryFnOnce>(self, work: F) -> F::Output {
        unsafe {
            match DOT {
                MULTIPLIED => multiplied(work),
                #[cfg(test)]
                VNNI_OF_512 => vnni_of_512(work),
                _ => vnni(work),
            }
        }
    }

    #[inline(always)]
    fn load(self, bytes: &[u8; 64]) -> Pair {
        let bytes = bytes.as_ptr().cast::<__m256i>();
        unsafe { [_mm256_loadu_si256(bytes), _mm256_loadu_si256(bytes.add(1))] }
    }

    #[inline(always)]
    fn store_bytes(self, bytes: Pair, into: &mut [u8; 64]) {
        let into = into.as_mut_ptr().cast::<__m256i>();
        unsafe {
            _mm256_storeu_si256(into, bytes[0]);
            _mm256_storeu_si256(into.add(1), bytes[1]);
        }
    }

    #[inline(always)]
    fn splat(self, byte: u8) -> Pair {
        unsafe { [_mm256_set1_epi8(byte.cast_signed()); 2] }
    }

    #[inline(always)]
    fn and(self, a: Pair, b: Pair) -> Pair {
        unsafe { [_mm256_and_si256(a[0], b[0]), _mm256_and_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn or(self, a: Pair, b: Pair) -> Pair {
        unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn xor(self, a: Pair, b: Pair) -> Pair {
        unsafe { [_mm256_xor_si256(a[0], b[0]), _mm256_xor_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn add_bytes(self, a: Pair, b: Pair) -> Pair {
        unsafe { [_mm256_add_epi8(a[0], b[0]), _mm256_add_epi8(a[1], b[1])] }
    }

    #[inline(always)]
    fn shift_right(self, bytes: Pair, bits: u32, mask: u8) -> Pair {
        unsafe {
            let (count, mask) = (_mm_cvtsi32_si128(bits.cast_signed()), _mm256_set1_epi8(mask.cast_signed()));
            [
                _mm256_and_si256(_mm256_srl_epi16(bytes[0], count), mask),
                _mm256_and_si256(_mm256_srl_epi16(bytes[1], count), mask),
            ]
        }
    }

    #[inline(always)]
    fn shift_left(self, bytes: Pair, bits: u32, mask: u8) -> Pair {
        unsafe {
            let (count, mask) = (_mm_cvtsi32_si128(bits.cast_signed()), _mm256_set1_epi8(mask.cast_signed()));
            [
                _mm256_and_si256(_mm256_sll_epi16(bytes[0], count), mask),
                _mm256_and_si256(_mm256_sll_epi16(bytes[1], count), mask),
            ]
        }
    }

    #[inline(always)]
    fn look_up(self, numbers: Pair, table: &[u8; 16]) -> Pair {
        unsafe {
            let table = _mm256_broadcastsi128_si256(cast(*table));
            [_mm256_shuffle_epi8(table, numbers[0]), _mm256_shuffle_epi8(table, numbers[1])]
        }
    }

    #[inline(always)]
    fn thirds(self, bytes: Pair) -> Pair {
        unsafe {
            let (one, third, thirds) =
                (_mm256_set1_epi8(1), _mm256_set1_epi8(85), _mm256_set1_epi8(170_u8.cast_signed()));
            let mut out = bytes;
            for half in 0..2 {
                let first = _mm256_min_epu8(_mm256_subs_epu8(bytes[half], third), one);
                let second = _mm256_min_epu8(_mm256_subs_epu8(bytes[half], thirds), one);
                out[half] = _mm256_add_epi8(first, second);
            }
            out
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
    fn unsigned(self, bytes: __m128i) -> Pair {
        unsafe { [_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))] }
    }

    #[inline(always)]
    fn signed(self, bytes: __m128i) -> Pair {
        unsafe { [_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes))] }
    }

    #[inline(always)]
    fn splat_int(self, value: i32) -> Pair {
        unsafe { [_mm256_set1_epi32(value); 2] }
    }

    #[inline(always)]
    fn add_ints(self, a: Pair, b: Pair) -> Pair {
        unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
    }

    #[inline(always)]
    fn dot(self, sum: Pair, [a, b]: [Pair; 2], [x, y]: [i32; 2]) -> Pair {
        unsafe {
            let (x, y) = (_mm256_set1_epi32(x), _mm256_set1_epi32(y));
            let mut sum = sum;
            for half in 0..2 {
                sum[half] = if DOT == MULTIPLIED {
                    // Four products of at most 63 · 127 fit in 16 bits.
                    let pairs = _mm256_add_epi16(_mm256_maddubs_epi16(a[half], x), _mm256_maddubs_epi16(b[half], y));
                    _mm256_add_epi32(sum[half], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
                } else {
                    dot_of_four::<DOT>(dot_of_four::<DOT>(sum[half], a[half], x), b[half], y)
                };
            }
            sum
        }
    }

    #[inline(always)]
    fn dot_wide(self, sum: Pair, quants: [Pair; 2], words: [i32; 2]) -> Pair {
        if DOT != MULTIPLIED {
            return self.dot(sum, quants, words);
        }
        unsafe {
            let mut sum = sum;
            for unit in 0..2 {
                let word = _mm256_set1_epi32(words[unit]);
                for half in 0..2 {
                    // The instruction multiplies unsigned with signed bytes, so signs of quants move to the other
                    // side. Two products of at most 128 · 127 fit in 16 bits.
                    let quants = quants[unit][half];
                    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(quants), _mm256_sign_epi8(word, quants));
                    sum[half] = _mm256_add_epi32(sum[half], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                }
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
    ) -> [[Pair; R]; TILES] {
        unsafe {
            let zero = _mm256_setzero_si256();
            let mut sums = [[[zero; 2]; R]; TILES];
            for tile in 0..TILES {
                for r in 0..R {
                    sums[tile][r] = self.splat_int(starts[r]);
                }
                let quants = quants[tile];
                if DOT != MULTIPLIED {
                    for (unit, quants) in quants.iter().enumerate() {
                        let quants = self.load(quants);
                        for r in 0..R {
                            let word = _mm256_set1_epi32(words[r][first + unit]);
                            for half in 0..2 {
                                sums[tile][r][half] = dot_of_four::<DOT>(sums[tile][r][half], quants[half], word);
                            }
                        }
                    }
                    continue;
                }
                // Sums of two products each fit in 16 bits, and so do several of them added.
                let (together, one) = (together(MOST), _mm256_set1_epi16(1));
                for begin in (0..quants.len()).step_by(together) {
                    let mut pairs = [[zero; 2]; R];
                    for unit in begin..quants.len().min(begin + together) {
                        let quants = self.load(&quants[unit]);
                        for r in 0..R {
                            let word = _mm256_set1_epi32(words[r][first + unit]);
                            for half in 0..2 {
                                let (quants, word) = match MOST {
                                    SIGNED => (_mm256_abs_epi8(quants[half]), _mm256_sign_epi8(word, quants[half])),
                                    _ => (quants[half], word),
                                };
                                let product = _mm256_maddubs_epi16(quants, word);
                                pairs[r][half] = _mm256_add_epi16(pairs[r][half], product);
                            }
                        }
                    }
                    for r in 0..R {
                        for half in 0..2 {
                            let wide = _mm256_madd_epi16(pairs[r][half], one);
                            sums[tile][r][half] = _mm256_add_epi32(sums[tile][r][half], wide);
                        }
                    }
                }
            }
            sums
        }
    }

    #[inline(always)]
    fn load_floats(self, floats: &[f32; LANES]) -> [__m256; 2] {
        let floats = floats.as_ptr();
        unsafe { [_mm256_loadu_ps(floats), _mm256_loadu_ps(floats.add(8))] }
    }

    #[inline(always)]
    fn brains(self, bits: &[u16; LANES]) -> [__m256; 2] {
        let [low, high]: [__m128i; 2] = cast(*bits);
        unsafe {
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(low))),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(high))),
            ]
        }
    }

    #[inline(always)]
    fn splat_float(self, value: f32) -> [__m256; 2] {
        unsafe { [_mm256_set1_ps(value); 2] }
    }

    #[inline(always)]
    fn floats(self, ints: Pair) -> [__m256; 2] {
        unsafe { [_mm256_cvtepi32_ps(ints[0]), _mm256_cvtepi32_ps(ints[1])] }
    }

    #[inline(always)]
    fn halves(self, bits: &[u8; 2 * LANES]) -> [__m256; 2] {
        let [low, high]: [__m128i; 2] = cast(*bits);
        unsafe { [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)] }
    }

    #[inline(always)]
    fn eighths(self, bytes: &[u8; LANES]) -> [__m256; 2] {
        unsafe {
            // Copies of the sign above the seven other bits are masked out, but for the uppermost.
            let wide = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(cast(*bytes)));
            self.halves(&cast(_mm256_and_si256(wide, _mm256_set1_epi16(0xbf80_u16.cast_signed()))))
        }
    }

    #[inline(always)]
    fn powers(self, exponents: __m128i) -> [__m256; 2] {
        // Two factors are normal numbers where their product is not: half of the exponent, and the rest of it.
        unsafe {
            let (all, half) = (self.unsigned(exponents), self.unsigned(self.narrow_right(exponents, 1, 127)));
            [
                _mm256_mul_ps(power(half[0]), power(_mm256_sub_epi32(all[0], half[0]))),
                _mm256_mul_ps(power(half[1]), power(_mm256_sub_epi32(all[1], half[1]))),
            ]
        }
    }

    #[inline(always)]
    fn mul(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn mul_add(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    fn neg_mul_add(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_fnmadd_ps(a[0], b[0], c[0]), _mm256_fnmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    fn store(self, floats: [__m256; 2], into: &mut [f32; LANES]) {
        let into = into.as_mut_ptr();
        unsafe {
            _mm256_storeu_ps(into, floats[0]);
            _mm256_storeu_ps(into.add(8), floats[1]);
        }
    }

    #[inline(always)]
    fn part(self, floats: [__m256; 2], at: usize) -> __m256 {
        floats[at]
    }

    #[inline(always)]
    fn load_part(self, floats: &[f32]) -> __m256 {
        unsafe { _mm256_loadu_ps(floats[..8].as_ptr()) }
    }

    #[inline(always)]
    fn mul_add_part(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn store_part(self, part: __m256, into: &mut [f32]) {
        unsafe { _mm256_storeu_ps(into[..8].as_mut_ptr(), part) }
    }

    #[inline(always)]
    fn sum(self, floats: [__m256; 2]) -> f32 {
        sum_of(unsafe { _mm256_add_ps(floats[0], floats[1]) })
    }

    #[inline(always)]
    fn four_sums(self, [a, b, c, d]: [[__m256; 2]; 4]) -> [f32; 4] {
        unsafe {
            four_sums_of([
                _mm256_add_ps(a[0], a[1]),
                _mm256_add_ps(b[0], b[1]),
                _mm256_add_ps(c[0], c[1]),
                _mm256_add_ps(d[0], d[1]),
            ])
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
