//! Attention's inner loops for machines with AVX-512, where halves are widened on their way into a register.

use super::kernel::{Product, SoftmaxBlock};

/// Most rows of a product that takes halves as they are.
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

/// f16 as f32, exactly. Both are of the same length.
#[cfg(target_arch = "x86_64")]
pub(super) fn widen(Avx512(()): Avx512, bits: &[u16], wide: &mut [f32]) {
    // SAFETY: as above.
    #[allow(unsafe_code)]
    unsafe {
        x86::widen(bits, wide);
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn widen(Avx512(()): Avx512, _: &[u16], _: &mut [f32]) {
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

    use super::super::kernel::{LANES, Panel, Product, SoftmaxBlock};

    /// The number of bytes by which memory is prefetched. The processor prefetches by itself too, but stops at the
    /// end of each page.
    const BYTES_AHEAD: usize = 4 << 10;

    #[target_feature(enable = "avx512f,fma")]
    pub(super) fn weigh(weigh: SoftmaxBlock<'_>) {
        weigh.call();
    }

    #[target_feature(enable = "avx512f,fma")]
    pub(super) fn widen(bits: &[u16], wide: &mut [f32]) {
        let ((bits, bits_left), (wide, wide_left)) = (bits.as_chunks::<LANES>(), wide.as_chunks_mut::<LANES>());
        for (bits, wide) in bits.iter().zip(wide) {
            store(wide, _mm512_cvtph_ps(cast(*bits)));
        }
        super::super::cache::widen(bits_left, wide_left);
    }

    #[target_feature(enable = "avx512f,fma")]
    pub(super) fn product(mut product: Product<'_>) {
        match product.b {
            Panel::Halves(bits) => all_rows::<true>(&mut product, (bits, &[])),
            Panel::Floats(floats) => all_rows::<false>(&mut product, (&[], floats)),
        }
    }

    /// The panel is the first of `b` if it is halves, or else the second.
    #[target_feature(enable = "avx512f,fma")]
    #[inline]
    fn all_rows<const HALVES: bool>(product: &mut Product<'_>, b: (&[u16], &[f32])) {
        let mut row = 0;
        while row < product.rows {
            // Six by four running sums, four vectors of the panel and a factor fill the registers.
            row += match product.rows - row {
                1 => rows_of::<HALVES, 1>(product, b, row),
                2 => rows_of::<HALVES, 2>(product, b, row),
                3 => rows_of::<HALVES, 3>(product, b, row),
                4 => rows_of::<HALVES, 4>(product, b, row),
                5 => rows_of::<HALVES, 5>(product, b, row),
                _ => rows_of::<HALVES, 6>(product, b, row),
            };
        }
    }

    /// `R` rows; gives `R`.
    #[target_feature(enable = "avx512f,fma")]
    #[inline]
    fn rows_of<const HALVES: bool, const R: usize>(
        product: &mut Product<'_>,
        b: (&[u16], &[f32]),
        row: usize,
    ) -> usize {
        let mut column = 0;
        while column < product.width {
            column += match (product.width - column) / LANES {
                1 => strip::<HALVES, R, 1>(product, b, row, column),
                2 => strip::<HALVES, R, 2>(product, b, row, column),
                3 => strip::<HALVES, R, 3>(product, b, row, column),
                _ => strip::<HALVES, R, 4>(product, b, row, column),
            };
        }
        R
    }

    /// `R` rows and `V` vectors of columns; gives the number of columns.
    #[target_feature(enable = "avx512f,fma")]
    #[inline]
    #[allow(clippy::needless_range_loop, reason = "the indices run over several arrays at once")]
    fn strip<const HALVES: bool, const R: usize, const V: usize>(
        product: &mut Product<'_>,
        b: (&[u16], &[f32]),
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
        for k in 0..depth {
            let at = k * product.b_stride + column;
            let mut vectors = [_mm512_setzero_ps(); V];
            if HALVES {
                let halves = b.0[at..][..V * LANES].as_chunks::<LANES>().0;
                ask_ahead(halves);
                for v in 0..V {
                    vectors[v] = _mm512_cvtph_ps(cast(halves[v]));
                }
            } else {
                let floats = b.1[at..][..V * LANES].as_chunks::<LANES>().0;
                for v in 0..V {
                    vectors[v] = load(&floats[v]);
                }
            }
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

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn ask_ahead(halves: &[[u16; LANES]]) {
        let ahead = halves.as_ptr().cast::<i8>().wrapping_add(BYTES_AHEAD);
        for line in (0..size_of_val(halves)).step_by(64) {
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
