//! The inner loop for machines with AVX-512 and VNNI. It multiplies a tile of sixteen rows with rows of activations,
//! one lane for each row of the tile. [`super::tiles`] defines their layout.
//!
//! Quants are multiplied as unsigned integers, and the error of that is subtracted exactly, in integers. Each lane is
//! one running sum over the groups in their order, for any number of activations. A row's result does not depend on the
//! other rows of the step.

use std::ops::Range;

use super::fields::LANES;
use super::formats::Format;
use crate::kernels::activations::Activations;

/// A proof that this machine has the instructions.
#[derive(Clone, Copy)]
pub(super) struct Vnni(());

impl Vnni {
    /// The proof, if this machine has the instructions.
    pub(super) fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni")
        {
            return Some(Self(()));
        }
        None
    }
}

/// Multiplies one tile with some rows of activations. `y` has the results of each row; those of this tile begin at an
/// offset.
pub(super) fn tile(
    Vnni(()): Vnni,
    format: Format,
    tile: &[u8],
    x: &Activations,
    rows: Range<usize>,
    y: (usize, &mut [&mut [f32]]),
) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a `Vnni` exists only if `detect` found all features that the function is compiled for.
    #[allow(unsafe_code)]
    unsafe {
        kernels::tile(format, tile, x, rows, y);
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{:?} {} {} {:?} {}", format, tile.len(), x.depth(), rows, y.1.len());
}

#[cfg(target_arch = "x86_64")]
mod kernels {
    use std::arch::x86_64::*;
    use std::array::from_fn;
    use std::ops::Range;

    use pulp::cast;

    use super::{Format, LANES};
    use crate::kernels::activations::{Activations, Chunk8};
    use crate::kernels::unpacked::GROUPS;

    /// The distance in bytes by which memory is prefetched: the bytes that arrive while a block or two are computed.
    const BYTES_AHEAD: usize = 4 << 10;

    /// Multiplies by the loop for the number of rows, the largest strips first.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) fn tile(
        format: Format,
        tile: &[u8],
        x: &Activations,
        rows: Range<usize>,
        (at, y): (usize, &mut [&mut [f32]]),
    ) {
        let mut row = rows.start;
        let mut y = y.iter_mut().filter_map(|y| y.get_mut(at..).and_then(|rest| rest.first_chunk_mut()));
        while row < rows.end {
            // The running sums of more than eight rows do not fit in the registers.
            row += match rows.end - row {
                1 => strip::<1>(format, tile, x, row, &mut y),
                2 => strip::<2>(format, tile, x, row, &mut y),
                3 => strip::<3>(format, tile, x, row, &mut y),
                4 => strip::<4>(format, tile, x, row, &mut y),
                5 => strip::<5>(format, tile, x, row, &mut y),
                6 => strip::<6>(format, tile, x, row, &mut y),
                7 => strip::<7>(format, tile, x, row, &mut y),
                _ => strip::<8>(format, tile, x, row, &mut y),
            };
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    #[inline]
    fn strip<'y, const R: usize>(
        format: Format,
        tile: &[u8],
        x: &Activations,
        row: usize,
        y: &mut impl Iterator<Item = &'y mut [f32; LANES]>,
    ) -> usize {
        let x: [&[Chunk8]; R] = from_fn(|r| x.row(row + r));
        let sums = match format {
            Format::Q4K => q4_k(tile, x),
            Format::Q6K => q6_k(tile, x),
            _ => q8_0(tile, x),
        };
        for sum in sums {
            if let Some(y) = y.next() {
                // SAFETY: the write has exactly the length of `y`, and needs no alignment.
                #[allow(unsafe_code)]
                unsafe {
                    _mm512_storeu_ps(y.as_mut_ptr(), sum);
                }
            }
        }
        R
    }

    /// The vector at an offset. Tiles are whole, so it always exists.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn vector<const N: usize>(tile: &[u8; N], at: usize) -> __m512i {
        match tile.get(at..).and_then(|rest| rest.first_chunk::<64>()) {
            // SAFETY: the read has exactly the length of `bytes`, and needs no alignment.
            #[allow(unsafe_code)]
            Some(bytes) => unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) },
            None => _mm512_setzero_si512(),
        }
    }

    /// Sixteen f16 at an offset, converted to f32.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn halves<const N: usize>(tile: &[u8; N], at: usize) -> __m512 {
        match tile.get(at..).and_then(|rest| rest.first_chunk::<32>()) {
            Some(bytes) => _mm512_cvtph_ps(cast(*bytes)),
            None => _mm512_setzero_ps(),
        }
    }

    /// Sixteen bytes at an offset.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn bytes<const N: usize>(tile: &[u8; N], at: usize) -> __m128i {
        match tile.get(at..).and_then(|rest| rest.first_chunk::<16>()) {
            Some(bytes) => cast(*bytes),
            None => _mm_setzero_si128(),
        }
    }

    /// Prefetches a later block, because the weights of one token come from memory. The processor prefetches too, but
    /// stops at the end of each page.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn ask_ahead<const N: usize, const R: usize>(block: &[u8; N]) {
        // With more rows of activations, the tile is in the cache after the first row.
        if R <= 2 {
            let ahead = block.as_ptr().wrapping_add(BYTES_AHEAD);
            for line in (0..N).step_by(64) {
                // SAFETY: a prefetch reads nothing and accepts any address. Newer compilers do not need `unsafe` here.
                #[allow(unsafe_code, unused_unsafe)]
                unsafe {
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line).cast());
                }
            }
        }
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn as_floats(bytes: __m128i) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))
    }

    const Q4_K_TILE: usize = 144 * LANES;

    /// The scales and the minimums of the eight groups of a block.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn scales_and_mins(tile: &[u8; Q4_K_TILE]) -> [[__m512; GROUPS]; 2] {
        let (d, dmin) = (halves(tile, 0), halves(tile, 2 * LANES));
        let (six, nibble, two) = (_mm_set1_epi8(63), _mm_set1_epi8(15), _mm_set1_epi8(0x30));
        let mut scales = [_mm512_setzero_ps(); GROUPS];
        let mut mins = scales;
        for j in 0..4 {
            let packed = |field: usize| bytes(tile, (4 + 4 * field + j) * LANES);
            let (a, b, c) = (packed(0), packed(1), packed(2));
            // Bytes are shifted as words; the mask removes the bits of the neighbouring byte.
            let high = |word: __m128i| _mm_and_si128(_mm_srli_epi16::<2>(word), two);
            scales[j] = _mm512_mul_ps(d, as_floats(_mm_and_si128(a, six)));
            mins[j] = _mm512_mul_ps(dmin, as_floats(_mm_and_si128(b, six)));
            let low = (_mm_and_si128(c, nibble), _mm_and_si128(_mm_srli_epi16::<4>(c), nibble));
            scales[4 + j] = _mm512_mul_ps(d, as_floats(_mm_or_si128(low.0, high(a))));
            mins[4 + j] = _mm512_mul_ps(dmin, as_floats(_mm_or_si128(low.1, high(b))));
        }
        [scales, mins]
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    #[inline]
    #[allow(clippy::needless_range_loop, reason = "the indices run over several arrays at once")]
    fn q4_k<const R: usize>(tile: &[u8], x: [&[Chunk8]; R]) -> [__m512; R] {
        let low = _mm512_set1_epi8(15);
        let mut sums = [_mm512_setzero_ps(); R];
        for (c, block) in tile.as_chunks::<Q4_K_TILE>().0.iter().enumerate() {
            let x: [&Chunk8; R] = from_fn(|r| &x[r][c]);
            ask_ahead::<Q4_K_TILE, R>(block);
            let [scales, mins] = scales_and_mins(block);
            // Two groups share bytes: one has the low nibbles, the other the high ones.
            for pair in 0..GROUPS / 2 {
                let mut dots = [[_mm512_setzero_si512(); 2]; R];
                for unit in 0..8 {
                    let packed = vector(block, (16 + 32 * pair + 4 * unit) * LANES);
                    let first = _mm512_and_si512(packed, low);
                    let second = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), low);
                    for r in 0..R {
                        let (a, b) = (x[r].words[2 * pair][unit], x[r].words[2 * pair + 1][unit]);
                        dots[r][0] = _mm512_dpbusd_epi32(dots[r][0], first, _mm512_set1_epi32(a));
                        dots[r][1] = _mm512_dpbusd_epi32(dots[r][1], second, _mm512_set1_epi32(b));
                    }
                }
                for half in 0..2 {
                    let g = 2 * pair + half;
                    for r in 0..R {
                        let factor = _mm512_mul_ps(scales[g], _mm512_set1_ps(x[r].scales[g]));
                        sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][half]), factor, sums[r]);
                        sums[r] = _mm512_fnmadd_ps(mins[g], _mm512_set1_ps(x[r].group_sums[g]), sums[r]);
                    }
                }
            }
        }
        sums
    }

    const Q6_K_TILE: usize = 210 * LANES;

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    #[inline]
    fn q6_k<const R: usize>(tile: &[u8], x: [&[Chunk8]; R]) -> [__m512; R] {
        let mut sums = [_mm512_setzero_ps(); R];
        for (c, block) in tile.as_chunks::<Q6_K_TILE>().0.iter().enumerate() {
            let x: [&Chunk8; R] = from_fn(|r| &x[r][c]);
            let d = halves(block, 208 * LANES);
            SixBits::<0, 0> { block, d }.add_to(x, &mut sums);
            SixBits::<0, 1> { block, d }.add_to(x, &mut sums);
            SixBits::<1, 0> { block, d }.add_to(x, &mut sums);
            SixBits::<1, 1> { block, d }.add_to(x, &mut sums);
        }
        sums
    }

    /// Half of the units of half a block of Q6_K: 16 elements of each of four groups. The first and the third have
    /// their low bits in the same bytes, and so have the second and the fourth.
    struct SixBits<'a, const HALF: usize, const SUB: usize> {
        block: &'a [u8; Q6_K_TILE],
        d: __m512,
    }

    impl<const HALF: usize, const SUB: usize> SixBits<'_, HALF, SUB> {
        #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
        #[inline]
        fn add_to<const R: usize>(&self, x: [&Chunk8; R], sums: &mut [__m512; R]) {
            // The running sums of more than sixteen do not fit in the registers.
            if R <= 4 {
                self.all(x, sums);
            } else {
                self.pair::<R, 0>(x, sums);
                self.pair::<R, 1>(x, sums);
            }
        }

        /// Adds the products of all four groups, one pair after the other.
        #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
        #[inline]
        fn all<const R: usize>(&self, x: [&Chunk8; R], sums: &mut [__m512; R]) {
            let mut dots = [self.begin(x, 0), self.begin(x, 2), self.begin(x, 1), self.begin(x, 3)];
            for unit in 4 * SUB..4 * SUB + 4 {
                let tops = self.tops::<R>(unit);
                let ([first, third], [second, fourth]) =
                    (self.quants::<R, 0>(unit, tops), self.quants::<R, 1>(unit, tops));
                self.add(x, unit, 0, first, &mut dots[0]);
                self.add(x, unit, 2, third, &mut dots[1]);
                self.add(x, unit, 1, second, &mut dots[2]);
                self.add(x, unit, 3, fourth, &mut dots[3]);
            }
            self.end(x, 0, dots[0], sums);
            self.end(x, 2, dots[1], sums);
            self.end(x, 1, dots[2], sums);
            self.end(x, 3, dots[3], sums);
        }

        /// Adds the products of the groups `PAIR` and `PAIR + 2`.
        #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
        #[inline]
        fn pair<const R: usize, const PAIR: usize>(&self, x: [&Chunk8; R], sums: &mut [__m512; R]) {
            let mut dots = [self.begin(x, PAIR), self.begin(x, PAIR + 2)];
            for unit in 4 * SUB..4 * SUB + 4 {
                let [low, high] = self.quants::<R, PAIR>(unit, self.tops::<R>(unit));
                self.add(x, unit, PAIR, low, &mut dots[0]);
                self.add(x, unit, PAIR + 2, high, &mut dots[1]);
            }
            self.end(x, PAIR, dots[0], sums);
            self.end(x, PAIR + 2, dots[1], sums);
        }

        /// The sum that unsigned quants add, subtracted beforehand.
        #[target_feature(enable = "avx512f")]
        #[inline]
        #[allow(clippy::needless_range_loop, reason = "the index runs over several arrays at once")]
        fn begin<const R: usize>(&self, x: [&Chunk8; R], group: usize) -> [__m512i; R] {
            let mut dots = [_mm512_setzero_si512(); R];
            for r in 0..R {
                dots[r] = _mm512_set1_epi32(x[r].offsets[2 * (4 * HALF + group) + SUB]);
            }
            dots
        }

        /// The vector at an offset. It also prefetches the vector at the same offset two blocks later. A block is read
        /// from several places at once, which the processor does not predict.
        #[target_feature(enable = "avx512f")]
        #[inline]
        fn asking_ahead<const R: usize>(&self, at: usize) -> __m512i {
            // With more rows of activations, the tile is in the cache after the first row.
            if R <= 2 {
                let ahead = self.block.as_ptr().wrapping_add(at + 2 * Q6_K_TILE);
                // SAFETY: a prefetch reads nothing and accepts any address. Newer compilers do not need `unsafe` here.
                #[allow(unsafe_code, unused_unsafe)]
                unsafe {
                    _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                }
            }
            vector(self.block, at)
        }

        /// The high bits of a unit, two for each group.
        #[target_feature(enable = "avx512f")]
        #[inline]
        fn tops<const R: usize>(&self, unit: usize) -> __m512i {
            self.asking_ahead::<R>((128 + 32 * HALF + 4 * unit) * LANES)
        }

        /// The quants of a unit, of the groups `PAIR` and `PAIR + 2`.
        #[target_feature(enable = "avx512f,avx512bw")]
        #[inline]
        fn quants<const R: usize, const PAIR: usize>(&self, unit: usize, tops: __m512i) -> [__m512i; 2] {
            let (low, two) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
            let nibbles = self.asking_ahead::<R>((64 * HALF + 32 * PAIR + 4 * unit) * LANES);
            // Bytes are shifted as words; the mask removes the bits of the neighbouring byte.
            let tops = match PAIR {
                0 => [_mm512_slli_epi16::<4>(tops), tops],
                _ => [_mm512_slli_epi16::<2>(tops), _mm512_srli_epi16::<2>(tops)],
            };
            let nibbles = [nibbles, _mm512_srli_epi16::<4>(nibbles)];
            [0, 1].map(|i| _mm512_or_si512(_mm512_and_si512(nibbles[i], low), _mm512_and_si512(tops[i], two)))
        }

        #[target_feature(enable = "avx512f,avx512vnni")]
        #[inline]
        #[allow(clippy::needless_range_loop, reason = "the index runs over several arrays at once")]
        fn add<const R: usize>(
            &self,
            x: [&Chunk8; R],
            unit: usize,
            group: usize,
            quants: __m512i,
            dots: &mut [__m512i; R],
        ) {
            for r in 0..R {
                let word = _mm512_set1_epi32(x[r].words[4 * HALF + group][unit]);
                dots[r] = _mm512_dpbusd_epi32(dots[r], quants, word);
            }
        }

        #[target_feature(enable = "avx512f")]
        #[inline]
        #[allow(clippy::needless_range_loop, reason = "the index runs over several arrays at once")]
        fn end<const R: usize>(&self, x: [&Chunk8; R], group: usize, dots: [__m512i; R], sums: &mut [__m512; R]) {
            let g = 4 * HALF + group;
            let scale = _mm512_cvtepi8_epi32(bytes(self.block, (192 + 2 * g + SUB) * LANES));
            let scale = _mm512_mul_ps(self.d, _mm512_cvtepi32_ps(scale));
            for r in 0..R {
                let factor = _mm512_mul_ps(scale, _mm512_set1_ps(x[r].scales[g]));
                sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), factor, sums[r]);
            }
        }
    }

    const Q8_0_TILE: usize = 34 * LANES;

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    #[inline]
    #[allow(clippy::needless_range_loop, reason = "the indices run over several arrays at once")]
    fn q8_0<const R: usize>(tile: &[u8], x: [&[Chunk8]; R]) -> [__m512; R] {
        let sign = _mm512_set1_epi8(-128);
        let mut sums = [_mm512_setzero_ps(); R];
        for (number, block) in tile.as_chunks::<Q8_0_TILE>().0.iter().enumerate() {
            let (c, g) = (number / GROUPS, number % GROUPS);
            ask_ahead::<Q8_0_TILE, R>(block);
            let scale = halves(block, 0);
            // The excess that unsigned quants cause: 128 times the sum of the activations.
            let mut dots = [_mm512_setzero_si512(); R];
            for r in 0..R {
                let [first, second] = [x[r][c].offsets[2 * g], x[r][c].offsets[2 * g + 1]];
                dots[r] = _mm512_set1_epi32(4 * (first + second));
            }
            for unit in 0..8 {
                let quants = _mm512_xor_si512(vector(block, (2 + 4 * unit) * LANES), sign);
                for r in 0..R {
                    let word = _mm512_set1_epi32(x[r][c].words[g][unit]);
                    dots[r] = _mm512_dpbusd_epi32(dots[r], quants, word);
                }
            }
            for r in 0..R {
                let factor = _mm512_mul_ps(scale, _mm512_set1_ps(x[r][c].scales[g]));
                sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), factor, sums[r]);
            }
        }
        sums
    }
}
