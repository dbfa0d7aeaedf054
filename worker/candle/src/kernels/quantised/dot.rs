//! The inner loop: products of unpacked rows of a matrix with rows of activations, with AVX2 if the machine has it. It
//! is the same for all block types.

use std::array::from_fn;

use pulp::NullaryFnOnce;

use super::formats::{Format, Layout};
use crate::kernels::activations::{Activations, Chunk8};
use crate::kernels::unpacked::{GROUPS, UnpackedChunk};

/// Some rows of a matrix, and all rows of activations that they are multiplied with.
pub(super) struct QuantisedRows<'a> {
    pub(super) format: Format,
    pub(super) row_bytes: usize,
    pub(super) blocks: &'a [u8],
    pub(super) x: &'a Activations,
    /// The results, `[rows of the matrix, rows of activations]`.
    pub(super) y: &'a mut [f32],
}

/// Computes the products of the rows; `unpacked` is memory for unpacked rows, reused between calls.
pub(super) fn rows(rows: QuantisedRows<'_>, unpacked: &mut Vec<UnpackedChunk>) {
    unpacked.resize(rows.blocks.len() / rows.row_bytes * rows.x.per_row(), UnpackedChunk::ZERO);
    let format = rows.format;
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V3::try_new() {
        return simd.vectorize(ByFormat { rows, unpacked, format, dot: Avx2(simd) });
    }
    ByFormat { rows, unpacked, format, dot: Portable }.call();
}

struct ByFormat<'a, D> {
    rows: QuantisedRows<'a>,
    unpacked: &'a mut [UnpackedChunk],
    format: Format,
    dot: D,
}

impl<D: Dot> NullaryFnOnce for ByFormat<'_, D> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        use super::formats::*;
        match self.format {
            Format::Q4_0 => self.run::<Q4_0>(),
            Format::Q4_1 => self.run::<Q4_1>(),
            Format::Q5_0 => self.run::<Q5_0>(),
            Format::Q5_1 => self.run::<Q5_1>(),
            Format::Q8_0 => self.run::<Q8_0>(),
            Format::Q2K => self.run::<Q2K>(),
            Format::Q3K => self.run::<Q3K>(),
            Format::Q4K => self.run::<Q4K>(),
            Format::Q5K => self.run::<Q5K>(),
            Format::Q6K => self.run::<Q6K>(),
        }
    }
}

impl<D: Dot> ByFormat<'_, D> {
    #[inline(always)]
    fn run<L: Layout>(self) {
        let Self { rows: QuantisedRows { row_bytes, blocks, x, y, .. }, unpacked, dot, .. } = self;
        for (row, chunks) in blocks.chunks_exact(row_bytes).zip(unpacked.chunks_exact_mut(x.per_row())) {
            for (blocks, chunk) in row.chunks(L::CHUNK_BYTES).zip(chunks) {
                L::unpack(blocks, chunk);
            }
        }
        let rows = x.rows();
        let mut first = 0;
        while first < rows {
            for (chunks, y) in unpacked.chunks_exact(x.per_row()).zip(y.chunks_exact_mut(rows)) {
                match rows - first {
                    1 => y[first..].copy_from_slice(&strip::<L, D, 1>(dot, chunks, x, first)),
                    2 => y[first..].copy_from_slice(&strip::<L, D, 2>(dot, chunks, x, first)),
                    3 => y[first..].copy_from_slice(&strip::<L, D, 3>(dot, chunks, x, first)),
                    _ => y[first..first + 4].copy_from_slice(&strip::<L, D, 4>(dot, chunks, x, first)),
                }
            }
            first += 4;
        }
    }
}

/// Multiplies one row of the matrix with `R` rows of activations.
#[inline(always)]
fn strip<L: Layout, D: Dot, const R: usize>(
    dot: D,
    chunks: &[UnpackedChunk],
    x: &Activations,
    first: usize,
) -> [f32; R] {
    let x: [&[Chunk8]; R] = from_fn(|r| &x.row(first + r)[..chunks.len()]);
    let mut sums: [D::Sums; R] = from_fn(|_| dot.zero());
    for (c, chunk) in chunks.iter().enumerate() {
        dot.add::<L, R>(chunk, from_fn(|r| &x[r][c]), &mut sums);
    }
    from_fn(|r| dot.total(sums[r]))
}

/// The multiplication of a chunk with activations, by one set of instructions.
trait Dot: Copy {
    /// Running sums of one result.
    type Sums: Copy;

    fn zero(self) -> Self::Sums;
    fn add<L: Layout, const R: usize>(self, w: &UnpackedChunk, x: [&Chunk8; R], sums: &mut [Self::Sums; R]);
    fn total(self, sums: Self::Sums) -> f32;
}

/// The multiplication without special instructions, for every machine.
#[derive(Clone, Copy)]
struct Portable;

impl Dot for Portable {
    type Sums = f32;

    fn zero(self) -> f32 {
        0.0
    }

    #[inline(always)]
    fn add<L: Layout, const R: usize>(self, w: &UnpackedChunk, x: [&Chunk8; R], sums: &mut [f32; R]) {
        for (x, sum) in x.into_iter().zip(sums) {
            for g in 0..GROUPS {
                let (mut dot, quants) = (0_i32, x.quants(g));
                for (i, x_quant) in quants.into_iter().enumerate() {
                    let w_quant = if L::SIGNED { i16::from(w.quants[g][i] as i8) } else { w.quants[g][i].into() };
                    dot += i32::from(w_quant * w.scales[g][i / 2]) * i32::from(x_quant);
                }
                *sum += w.factors[g] * x.scales[g] * dot as f32;
            }
            if !L::SIGNED {
                *sum -= w.mins.iter().zip(&x.half_sums).map(|(min, sum)| min * sum).sum::<f32>();
            }
        }
    }

    fn total(self, sums: f32) -> f32 {
        sums
    }
}

#[cfg(target_arch = "x86_64")]
use avx2::Avx2;

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{__m256, __m256i};

    use pulp::cast;
    use pulp::x86::V3;

    use super::{Chunk8, Dot, GROUPS, Layout, UnpackedChunk, from_fn};

    /// The multiplication with AVX2 and FMA; a [`V3`] proves that the machine has them.
    #[derive(Clone, Copy)]
    pub(super) struct Avx2(pub(super) V3);

    impl Dot for Avx2 {
        /// Sums of even and of odd groups, so that two multiply-adds are in flight at a time.
        type Sums = [__m256; 2];

        #[inline(always)]
        fn zero(self) -> [__m256; 2] {
            [self.0.avx._mm256_setzero_ps(); 2]
        }

        #[inline(always)]
        fn add<L: Layout, const R: usize>(self, w: &UnpackedChunk, x: [&Chunk8; R], sums: &mut [[__m256; 2]; R]) {
            let V3 { avx, avx2, fma, .. } = self.0;
            let factors: __m256 = cast(w.factors);
            let factors: [[f32; GROUPS]; R] = from_fn(|r| cast(avx._mm256_mul_ps(factors, cast(x[r].scales))));
            for g in 0..GROUPS {
                let (w, scales): (__m256i, __m256i) = (cast(w.quants[g]), cast(w.scales[g]));
                // The instruction multiplies unsigned with signed bytes, so signs of weights are moved to the
                // activations.
                let unsigned = if L::SIGNED { avx2._mm256_sign_epi8(w, w) } else { w };
                for r in 0..R {
                    let x: __m256i = cast(x[r].words[g]);
                    let x = if L::SIGNED { avx2._mm256_sign_epi8(x, w) } else { x };
                    // Sums of pairs have 16 bits and are at most 2 · 128 · 127; scaled sums of two pairs have 32 bits.
                    let pairs = avx2._mm256_maddubs_epi16(unsigned, x);
                    let fours = avx._mm256_cvtepi32_ps(avx2._mm256_madd_epi16(pairs, scales));
                    let factor = avx._mm256_set1_ps(factors[r][g]);
                    sums[r][g % 2] = fma._mm256_fmadd_ps(fours, factor, sums[r][g % 2]);
                }
            }
            if !L::SIGNED {
                let mins: [__m256; 2] = cast(w.mins);
                for r in 0..R {
                    let x: [__m256; 2] = cast(x[r].half_sums);
                    for half in 0..2 {
                        sums[r][half] = fma._mm256_fnmadd_ps(mins[half], x[half], sums[r][half]);
                    }
                }
            }
        }

        #[inline(always)]
        fn total(self, sums: [__m256; 2]) -> f32 {
            let lanes: [f32; 8] = cast(self.0.avx._mm256_add_ps(sums[0], sums[1]));
            let [a, b, c, d, e, f, g, h] = lanes;
            ((a + e) + (c + g)) + ((b + f) + (d + h))
        }
    }
}

/// The product without special instructions, for comparison in tests.
#[cfg(test)]
pub(super) fn rows_portably(matrix: &super::Quantised, x: &[f32], rows: usize) -> Vec<f32> {
    let x = Activations::quantise(x, rows, matrix.depth);
    let mut y = vec![0.0; matrix.outs * rows];
    let mut unpacked = vec![UnpackedChunk::ZERO; matrix.outs * x.per_row()];
    let (format, row_bytes) = (matrix.format, matrix.row_bytes());
    let blocks: Vec<u8> = (0..matrix.outs).flat_map(|row| matrix.row_blocks(row).into_owned()).collect();
    let rows_of = QuantisedRows { format, row_bytes, blocks: &blocks, x: &x, y: &mut y };
    ByFormat { rows: rows_of, unpacked: &mut unpacked, format, dot: Portable }.call();
    super::transposed(&y, matrix.outs, rows)
}
