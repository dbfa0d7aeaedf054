//! Attention's inner loops for machines with AVX-512, where all elements are widened on their way into a register.

use super::kernel::{Product, SoftmaxBlock};
use super::widen::PanelSpread;

/// Most rows of a product that takes other elements than floats as they are.
pub(super) const MOST_ROWS: usize = 6;

/// A proof that this machine has the instructions.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    /// The proof, if this machine has the instructions.
    pub(super) fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma") {
            return Some(Self(()));
        }
        None
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) fn product(Avx512(()): Avx512, product: Product<'_>) {
    // SAFETY: `Avx512` exists only where `detect` found the instructions that the function is compiled for.
    #[allow(unsafe_code)]
    unsafe {
        x86::product(product);
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) fn weigh(Avx512(()): Avx512, weigh: SoftmaxBlock<'_>) {
    // SAFETY: as above.
    #[allow(unsafe_code)]
    unsafe {
        x86::weigh(weigh);
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) fn spread(Avx512(()): Avx512, spread: PanelSpread<'_>) {
    // SAFETY: as above.
    #[allow(unsafe_code)]
    unsafe {
        x86::spread(spread);
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn spread(Avx512(()): Avx512, _: PanelSpread<'_>) {
    unreachable!("no machine of this kind has the instructions");
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn product(Avx512(()): Avx512, _: Product<'_>) {
    unreachable!("no machine of this kind has the instructions");
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn weigh(Avx512(()): Avx512, _: SoftmaxBlock<'_>) {
    unreachable!("no machine of this kind has the instructions");
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use pulp::{NullaryFnOnce, cast};

    use super::super::kernel::{Groups, LANES, Panel, Product, ScaledPanel, SoftmaxBlock};
    use super::super::widen::{PanelSpread, from_halves};
    use crate::matrix::kv_element::GROUP;

    // A vector of a row has one scale.
    const _: () = assert!(GROUP.is_multiple_of(LANES));

    /// The number of bytes by which memory is prefetched. The processor prefetches by itself too, but stops at the
    /// end of each page.
    const BYTES_AHEAD: usize = 4 << 10;

    #[target_feature(enable = "avx512f,fma")]
    pub(super) fn weigh(weigh: SoftmaxBlock<'_>) {
        weigh.call();
    }

    #[target_feature(enable = "avx512f,fma")]
    pub(super) fn spread(spread: PanelSpread<'_>) {
        let Panel::Halves(bits) = spread.rows else { return spread.call() };
        let PanelSpread { width, wide, stride, .. } = spread;
        for (bits, wide) in bits.chunks_exact(width.max(1)).zip(wide.chunks_mut(stride)) {
            let ((bits, bits_left), (wide, wide_left)) =
                (bits.as_chunks::<LANES>(), wide[..width].as_chunks_mut::<LANES>());
            for (bits, wide) in bits.iter().zip(wide) {
                store(wide, _mm512_cvtph_ps(cast(*bits)));
            }
            from_halves(bits_left, wide_left);
        }
    }

    /// The elements of a panel, of which a product knows when it is compiled: each kind has loops of its own.
    const FLOATS: u8 = 0;
    const HALVES: u8 = 1;
    const BRAINS: u8 = 2;
    const SCALED_COLUMNS: u8 = 3;
    const SCALED_ROWS: u8 = 4;

    /// A panel; parts that its kind does not have are empty.
    #[derive(Clone, Copy, Default)]
    struct PanelParts<'a> {
        floats: &'a [f32],
        bits: &'a [u16],
        quants: &'a [i8],
        scales: &'a [u16],
    }

    #[target_feature(enable = "avx512f,fma")]
    pub(super) fn product(mut product: Product<'_>) {
        let none = PanelParts::default();
        match product.b {
            Panel::Floats(floats) => all_rows::<FLOATS>(&mut product, &PanelParts { floats, ..none }),
            Panel::Halves(bits) => all_rows::<HALVES>(&mut product, &PanelParts { bits, ..none }),
            Panel::Brains(bits) => all_rows::<BRAINS>(&mut product, &PanelParts { bits, ..none }),
            Panel::Scaled(ScaledPanel { quants, scales, groups }) => {
                let source = PanelParts { quants, scales, ..none };
                match groups {
                    Groups::Columns => all_rows::<SCALED_COLUMNS>(&mut product, &source),
                    Groups::Rows => all_rows::<SCALED_ROWS>(&mut product, &source),
                }
            }
        }
    }

    #[target_feature(enable = "avx512f,fma")]
    #[inline]
    fn all_rows<const KIND: u8>(product: &mut Product<'_>, b: &PanelParts<'_>) {
        let mut row = 0;
        while row < product.rows {
            // Six by four running sums, four vectors of the panel and a factor fill the registers.
            row += match product.rows - row {
                1 => rows_of::<KIND, 1>(product, b, row),
                2 => rows_of::<KIND, 2>(product, b, row),
                3 => rows_of::<KIND, 3>(product, b, row),
                4 => rows_of::<KIND, 4>(product, b, row),
                5 => rows_of::<KIND, 5>(product, b, row),
                _ => rows_of::<KIND, 6>(product, b, row),
            };
        }
    }

    /// `R` rows; gives `R`.
    #[target_feature(enable = "avx512f,fma")]
    #[inline]
    fn rows_of<const KIND: u8, const R: usize>(product: &mut Product<'_>, b: &PanelParts<'_>, row: usize) -> usize {
        let mut column = 0;
        while column < product.width {
            column += match (product.width - column) / LANES {
                1 => strip::<KIND, R, 1>(product, b, row, column),
                2 => strip::<KIND, R, 2>(product, b, row, column),
                3 => strip::<KIND, R, 3>(product, b, row, column),
                _ => strip::<KIND, R, 4>(product, b, row, column),
            };
        }
        R
    }

    /// `R` rows and `V` vectors of columns; gives the number of columns.
    #[target_feature(enable = "avx512f,fma")]
    #[inline]
    #[allow(clippy::needless_range_loop, reason = "the indices run over several arrays at once")]
    fn strip<const KIND: u8, const R: usize, const V: usize>(
        product: &mut Product<'_>,
        b: &PanelParts<'_>,
        row: usize,
        column: usize,
    ) -> usize {
        let (depth, a_stride, c_stride) = (product.depth, product.a_stride, product.c_stride);
        let mut a: [&[f32]; R] = [&[]; R];
        let mut sums = [[_mm512_setzero_ps(); V]; R];
        for r in 0..R {
            a[r] = &product.a[(row + r) * a_stride..][..depth];
            let c = product.c[(row + r) * c_stride + column..][..V * LANES].as_chunks::<LANES>().0;
            for v in 0..V {
                sums[r][v] = load(&c[v]);
            }
        }
        let mut scales = [_mm512_setzero_ps(); V];
        for k in 0..depth {
            let vectors = vectors::<KIND, V>(b, product.b_stride, k, column, &mut scales);
            for r in 0..R {
                let factor = _mm512_set1_ps(a[r][k]);
                for v in 0..V {
                    sums[r][v] = _mm512_fmadd_ps(factor, vectors[v], sums[r][v]);
                }
            }
        }
        for r in 0..R {
            let c = product.c[(row + r) * c_stride + column..][..V * LANES].as_chunks_mut::<LANES>().0;
            for v in 0..V {
                store(&mut c[v], sums[r][v]);
            }
        }
        V * LANES
    }

    /// Some vectors of a row of a panel. `scales` are those of the group of columns that the row is in, kept from row
    /// to row.
    #[target_feature(enable = "avx512f")]
    #[inline]
    #[allow(clippy::needless_range_loop, reason = "the index runs over several arrays at once")]
    fn vectors<const KIND: u8, const V: usize>(
        b: &PanelParts<'_>,
        stride: usize,
        row: usize,
        column: usize,
        scales: &mut [__m512; V],
    ) -> [__m512; V] {
        let at = row * stride + column;
        let mut vectors = [_mm512_setzero_ps(); V];
        match KIND {
            FLOATS => {
                let floats = b.floats[at..][..V * LANES].as_chunks::<LANES>().0;
                for v in 0..V {
                    vectors[v] = load(&floats[v]);
                }
            }
            HALVES => {
                let halves = b.bits[at..][..V * LANES].as_chunks::<LANES>().0;
                ask_ahead(halves);
                for v in 0..V {
                    vectors[v] = _mm512_cvtph_ps(cast(halves[v]));
                }
            }
            BRAINS => {
                let brains = b.bits[at..][..V * LANES].as_chunks::<LANES>().0;
                ask_ahead(brains);
                for v in 0..V {
                    let bits = _mm512_cvtepu16_epi32(cast(brains[v]));
                    vectors[v] = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits));
                }
            }
            _ => {
                if KIND == SCALED_COLUMNS && row.is_multiple_of(GROUP) {
                    let of_group = b.scales[row / GROUP * stride + column..][..V * LANES].as_chunks::<LANES>().0;
                    for v in 0..V {
                        scales[v] = _mm512_cvtph_ps(cast(of_group[v]));
                    }
                }
                if KIND == SCALED_ROWS {
                    let of_row = &b.scales[row * stride.div_ceil(GROUP)..][..stride.div_ceil(GROUP)];
                    for v in 0..V {
                        let scale = of_row[(column + v * LANES) / GROUP];
                        scales[v] = _mm512_cvtph_ps(_mm256_set1_epi16(scale.cast_signed()));
                    }
                }
                let quants = b.quants[at..][..V * LANES].as_chunks::<LANES>().0;
                ask_ahead(quants);
                for v in 0..V {
                    let wide = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(cast(quants[v])));
                    vectors[v] = _mm512_mul_ps(wide, scales[v]);
                }
            }
        }
        vectors
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn ask_ahead<T>(part: &[[T; LANES]]) {
        let ahead = part.as_ptr().cast::<i8>().wrapping_add(BYTES_AHEAD);
        for line in (0..size_of_val(part)).step_by(64) {
            // SAFETY: a prefetch reads nothing, whatever the address. (Newer compilers know.)
            #[allow(unsafe_code, unused_unsafe)]
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line));
            }
        }
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn load(from: &[f32; LANES]) -> __m512 {
        // SAFETY: as many bytes are read as `from` has; they need no alignment.
        #[allow(unsafe_code)]
        unsafe {
            _mm512_loadu_ps(from.as_ptr())
        }
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn store(to: &mut [f32; LANES], vector: __m512) {
        // SAFETY: as many bytes are written as `to` has; they need no alignment.
        #[allow(unsafe_code)]
        unsafe {
            _mm512_storeu_ps(to.as_mut_ptr(), vector);
        }
    }
}
