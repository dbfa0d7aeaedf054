//! The inner loop for machines with AVX-512 and VNNI: a tile of sixteen rows against rows of activations, one lane for each
//! row of the tile. Knows the layout of tiles, which is [`super::tiles`]'s.
//!
//! Quants are taken as unsigned and what that adds is taken off again, exactly, in integers; each lane is one running sum
//! over the groups in their order, whatever number of activations passes together. So a row's result does not depend on
//! who shares the step.

use std::ops::Range;

use super::activations::Activations;
use super::formats::Format;
use super::tiles::LANES;

/// Shows that this machine has the instructions.
#[derive(Clone, Copy)]
pub(super) struct Vnni(());

impl Vnni {
    /// Whether it has.
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

/// One tile against some rows of activations: `y` has a vector for each of them.
pub(super) fn tile(
    Vnni(()): Vnni,
    format: Format,
    tile: &[u8],
    x: &Activations,
    rows: Range<usize>,
    y: &mut [[f32; LANES]],
) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a `Vnni` exists only where `detect` has found all features that the function is compiled for.
    #[allow(unsafe_code)]
    unsafe {
        kernels::tile(format, tile, x, rows, y);
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{:?} {} {} {:?} {}", format, tile.len(), x.depth(), rows, y.len());
}

#[cfg(target_arch = "x86_64")]
mod kernels {
    use std::arch::x86_64::*;
    use std::array::from_fn;
    use std::ops::Range;

    use pulp::cast;

    use super::super::activations::{Activations, Chunk8};
    use super::super::unpacked::GROUPS;
    use super::{Format, LANES};

    /// How far ahead memory is asked for: what arrives while a block or two are computed.
    const BYTES_AHEAD: usize = 4 << 10;

    /// Chooses the loop; the largest strips first.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) fn tile(format: Format, tile: &[u8], x: &Activations, rows: Range<usize>, y: &mut [[f32; LANES]]) {
        let mut row = rows.start;
        let mut y = y.iter_mut();
        while row < rows.end {
            let taken = match (rows.end - row, format) {
                // More running sums than these do not fit the registers.
                (8.., Format::Q4K | Format::Q8_0) => strip::<8>(format, tile, x, row, &mut y),
                (4.., _) => strip::<4>(format, tile, x, row, &mut y),
                (2.., _) => strip::<2>(format, tile, x, row, &mut y),
                _ => strip::<1>(format, tile, x, row, &mut y),
            };
            row += taken;
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    #[inline]
    fn strip<const R: usize>(
        format: Format,
        tile: &[u8],
        x: &Activations,
        row: usize,
        y: &mut std::slice::IterMut<'_, [f32; LANES]>,
    ) -> usize {
        let x: [&[Chunk8]; R] = from_fn(|r| x.row(row + r));
        let sums = match format {
            Format::Q4K => q4_k(tile, x),
            Format::Q6K => q6_k(tile, x),
            _ => q8_0(tile, x),
        };
        for sum in sums {
            if let Some(y) = y.next() {
                // SAFETY: as many bytes are written as `y` has; they need no alignment.
                #[allow(unsafe_code)]
                unsafe {
                    _mm512_storeu_ps(y.as_mut_ptr(), sum);
                }
            }
        }
        R
    }

    /// The vector at a place. Tiles are whole, so there is one.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn vector<const N: usize>(tile: &[u8; N], at: usize) -> __m512i {
        match tile.get(at..).and_then(|rest| rest.first_chunk::<64>()) {
            // SAFETY: as many bytes are read as `bytes` has; they need no alignment.
            #[allow(unsafe_code)]
            Some(bytes) => unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) },
            None => _mm512_setzero_si512(),
        }
    }

    /// Sixteen f16 as f32.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn halves<const N: usize>(tile: &[u8; N], at: usize) -> __m512 {
        match tile.get(at..).and_then(|rest| rest.first_chunk::<32>()) {
            Some(bytes) => _mm512_cvtph_ps(cast(*bytes)),
            None => _mm512_setzero_ps(),
        }
    }

    /// Sixteen bytes.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn bytes<const N: usize>(tile: &[u8; N], at: usize) -> __m128i {
        match tile.get(at..).and_then(|rest| rest.first_chunk::<16>()) {
            Some(bytes) => cast(*bytes),
            None => _mm_setzero_si128(),
        }
    }

    /// Asks for a block some way behind this one, as the weights of one token come from memory. The processor does so by
    /// itself too, but stops at the end of each page.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn ask_ahead<const N: usize, const R: usize>(block: &[u8; N]) {
        // With more activations the tile is in the cache after the first of them.
        if R <= 2 {
            let ahead = block.as_ptr().wrapping_add(BYTES_AHEAD);
            for line in (0..N).step_by(64) {
                // SAFETY: a prefetch reads nothing, whatever the address. (Newer compilers know.)
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

    /// Scales, then minimums of the eight groups of a block.
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
            // Shifted as words: what comes over from the neighbour is masked away.
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
            // Two groups share bytes: one has the low nibbles, one the high ones.
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
    #[allow(clippy::needless_range_loop, reason = "the indices run over several arrays at once")]
    fn q6_k<const R: usize>(tile: &[u8], x: [&[Chunk8]; R]) -> [__m512; R] {
        let (low, two) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
        let mut sums = [_mm512_setzero_ps(); R];
        for (c, block) in tile.as_chunks::<Q6_K_TILE>().0.iter().enumerate() {
            let x: [&Chunk8; R] = from_fn(|r| &x[r][c]);
            ask_ahead::<Q6_K_TILE, R>(block);
            let d = halves(block, 208 * LANES);
            for half in 0..2 {
                for sub in 0..2 {
                    // What taking quants as unsigned adds: 32 times the activations.
                    let mut dots = [[_mm512_setzero_si512(); 4]; R];
                    for r in 0..R {
                        for quarter in 0..4 {
                            let sum = x[r].sums[2 * (4 * half + quarter) + sub];
                            dots[r][quarter] = _mm512_set1_epi32(-32 * sum);
                        }
                    }
                    for unit in 4 * sub..4 * sub + 4 {
                        let a = vector(block, (64 * half + 4 * unit) * LANES);
                        let b = vector(block, (64 * half + 32 + 4 * unit) * LANES);
                        let high = vector(block, (128 + 32 * half + 4 * unit) * LANES);
                        // Shifted as words: what comes over from the neighbour is masked away.
                        let nibbles = [a, b, _mm512_srli_epi16::<4>(a), _mm512_srli_epi16::<4>(b)];
                        let tops = [
                            _mm512_slli_epi16::<4>(high),
                            _mm512_slli_epi16::<2>(high),
                            high,
                            _mm512_srli_epi16::<2>(high),
                        ];
                        for quarter in 0..4 {
                            let nibble = _mm512_and_si512(nibbles[quarter], low);
                            let quants = _mm512_or_si512(nibble, _mm512_and_si512(tops[quarter], two));
                            for r in 0..R {
                                let word = _mm512_set1_epi32(x[r].words[4 * half + quarter][unit]);
                                dots[r][quarter] = _mm512_dpbusd_epi32(dots[r][quarter], quants, word);
                            }
                        }
                    }
                    for quarter in 0..4 {
                        let g = 4 * half + quarter;
                        let scale = _mm512_cvtepi8_epi32(bytes(block, (192 + 2 * g + sub) * LANES));
                        let scale = _mm512_mul_ps(d, _mm512_cvtepi32_ps(scale));
                        for r in 0..R {
                            let factor = _mm512_mul_ps(scale, _mm512_set1_ps(x[r].scales[g]));
                            sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][quarter]), factor, sums[r]);
                        }
                    }
                }
            }
        }
        sums
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
            // What taking quants as unsigned adds: 128 times the activations.
            let mut dots = [_mm512_setzero_si512(); R];
            for r in 0..R {
                let sum = x[r][c].sums[2 * g] + x[r][c].sums[2 * g + 1];
                dots[r] = _mm512_set1_epi32(-128 * sum);
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
