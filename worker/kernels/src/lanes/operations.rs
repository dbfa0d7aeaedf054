//! The operations on sixteen lanes that an instruction set has to have.

use pulp::NullaryFnOnce;

/// Lanes of a vector: rows of a tile.
pub(crate) const LANES: usize = 16;

/// In place of the largest quant: quants are those of [`Lanes::dot_wide`].
pub(crate) const SIGNED: u8 = 255;

/// Operations on sixteen lanes. A value is a proof that the machine has the instructions.
pub(crate) trait Lanes: Copy {
    /// Four bytes for each lane.
    type Bytes: Copy;
    /// One byte for each lane.
    type Narrow: Copy;
    type Ints: Copy;
    type Floats: Copy;
    /// The floats of one register.
    type Part: Copy;

    /// Registers of one value of [`Self::Floats`].
    const PARTS: usize;

    /// Parts that fit in the registers as running sums, with those of a few rows beside them.
    const PART_SUMS: usize;

    /// The name of the instructions that are used, as operators write it.
    const NAME: &'static str;

    /// Most rows of activations whose running sums fit in the registers.
    const MOST_ROWS: usize;

    /// Whether the running sums of two groups of quants and up to four rows fit in the registers beside each other.
    const PAIRS: bool;

    /// Rows of activations that are multiplied together with unpacked quants: 1, 4, 6 or 16.
    const STRIP: usize;

    /// Whether unpacked quants of two tiles are multiplied together. Each of the activations is then read for both.
    const TWO_TILES: bool;

    /// Rows of activations from which on quants are unpacked once for all of them.
    const WORTH_UNPACKING: usize;

    /// Vectors of floats that fit in the registers as running sums, with some more beside them.
    const SUMS: usize;

    /// Whether [`Self::dot_wide`] takes quants with 128 added, modulo 256. Its sums then begin at −128 times the sum of
    /// the other factors.
    const BIASED: bool;

    /// Runs work compiled for these instructions.
    fn vectorize<F: NullaryFnOnce>(self, work: F) -> F::Output;

    fn load(self, bytes: &[u8; 64]) -> Self::Bytes;
    fn store_bytes(self, bytes: Self::Bytes, into: &mut [u8; 64]);
    fn splat(self, byte: u8) -> Self::Bytes;
    fn and(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    fn xor(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Adds bytes modulo 256.
    fn add_bytes(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Shifts each byte to the right and masks it. The mask leaves none of the bits that a shift of wider words would
    /// move in from the neighbouring byte.
    fn shift_right(self, bytes: Self::Bytes, bits: u32, mask: u8) -> Self::Bytes;
    /// Shifts each byte to the left and masks it, with a mask as in [`Self::shift_right`].
    fn shift_left(self, bytes: Self::Bytes, bits: u32, mask: u8) -> Self::Bytes;
    /// The entries of a table. Numbers are below 16.
    fn look_up(self, numbers: Self::Bytes, table: &[u8; 16]) -> Self::Bytes;
    /// `⌊3 b / 256⌋` of each byte.
    fn thirds(self, bytes: Self::Bytes) -> Self::Bytes;

    fn load_narrow(self, bytes: &[u8; LANES]) -> Self::Narrow;
    /// Shifts each byte to the right and masks it, with a mask as in [`Self::shift_right`].
    fn narrow_right(self, bytes: Self::Narrow, bits: u32, mask: u8) -> Self::Narrow;
    /// Shifts each byte to the left and masks it, with a mask as in [`Self::shift_right`].
    fn narrow_left(self, bytes: Self::Narrow, bits: u32, mask: u8) -> Self::Narrow;
    fn narrow_or(self, a: Self::Narrow, b: Self::Narrow) -> Self::Narrow;
    /// Unsigned bytes as integers.
    fn unsigned(self, bytes: Self::Narrow) -> Self::Ints;
    /// Signed bytes as integers.
    fn signed(self, bytes: Self::Narrow) -> Self::Ints;

    fn splat_int(self, value: i32) -> Self::Ints;
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Adds the products of eight quants of each lane with eight integers of 8 bits, which all lanes share. Quants are
    /// at most 63, and the integers at least −127.
    fn dot(self, sum: Self::Ints, quants: [Self::Bytes; 2], words: [i32; 2]) -> Self::Ints;
    /// As [`Self::dot`], for signed quants of 8 bits; see [`Self::BIASED`].
    fn dot_wide(self, sum: Self::Ints, quants: [Self::Bytes; 2], words: [i32; 2]) -> Self::Ints;

    /// The sums of the products of units of quants, of `TILES` tiles, with those from `first` on of `R` rows of
    /// activations, each with the number that its row begins with. Quants are at most `MOST`, which is 15, 31, 63 or
    /// [`SIGNED`]. There are eight units, or four, in every tile.
    #[inline(always)]
    fn dots<const TILES: usize, const R: usize, const MOST: u8>(
        self,
        starts: &[i32; R],
        quants: [&[[u8; 64]]; TILES],
        words: &[[i32; 8]; R],
        first: usize,
    ) -> [[Self::Ints; R]; TILES] {
        dots_by_units::<Self, TILES, R, MOST>(self, starts, quants, words, first)
    }

    /// Runs work that calls [`Self::dots`].
    #[inline(always)]
    fn with_tiles<F: NullaryFnOnce>(self, work: F) -> F::Output {
        self.vectorize(work)
    }

    fn load_floats(self, floats: &[f32; LANES]) -> Self::Floats;
    fn splat_float(self, value: f32) -> Self::Floats;
    fn floats(self, ints: Self::Ints) -> Self::Floats;
    /// Little-endian f16 as f32.
    fn halves(self, bits: &[u8; 2 * LANES]) -> Self::Floats;
    /// Bytes of a sign, four bits of exponent and three of mantissa as f32: their bits as those of an f16, with the
    /// exponent in its lower four bits.
    fn eighths(self, bytes: &[u8; LANES]) -> Self::Floats;
    /// The bits of bf16 as f32.
    fn brains(self, bits: &[u16; LANES]) -> Self::Floats;
    /// `2^(e − 128)` of each byte.
    fn powers(self, exponents: Self::Narrow) -> Self::Floats;
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a b + c`, rounded once.
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `c − a b`, rounded once.
    fn neg_mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    fn store(self, floats: Self::Floats, into: &mut [f32; LANES]);
    /// A part of sixteen floats.
    fn part(self, floats: Self::Floats, at: usize) -> Self::Part;
    /// The first floats, as many as a part has.
    fn load_part(self, floats: &[f32]) -> Self::Part;
    /// [`Self::mul_add`] of a part.
    fn mul_add_part(self, a: Self::Part, b: Self::Part, c: Self::Part) -> Self::Part;
    /// Writes a part to the first floats.
    fn store_part(self, part: Self::Part, into: &mut [f32]);
    /// The sum of all lanes: the upper half is added to the lower one until one lane is left.
    fn sum(self, floats: Self::Floats) -> f32;
    /// The sums of four vectors, each as by [`Self::sum`].
    #[inline(always)]
    fn four_sums(self, [a, b, c, d]: [Self::Floats; 4]) -> [f32; 4] {
        [self.sum(a), self.sum(b), self.sum(c), self.sum(d)]
    }

    /// Asks for memory that is read soon, into the second cache.
    fn prefetch(self, address: *const u8);
}

/// [`Lanes::dots`] by its products of two units.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the indices run over several arrays at once")]
pub(super) fn dots_by_units<L: Lanes, const TILES: usize, const R: usize, const MOST: u8>(
    lanes: L,
    starts: &[i32; R],
    quants: [&[[u8; 64]]; TILES],
    words: &[[i32; 8]; R],
    first: usize,
) -> [[L::Ints; R]; TILES] {
    let mut sums = [[lanes.splat_int(0); R]; TILES];
    for tile in 0..TILES {
        for r in 0..R {
            sums[tile][r] = lanes.splat_int(starts[r]);
        }
        for (two, quants) in quants[tile].as_chunks::<2>().0.iter().enumerate() {
            let quants = [lanes.load(&quants[0]), lanes.load(&quants[1])];
            for r in 0..R {
                let words = [words[r][first + 2 * two], words[r][first + 2 * two + 1]];
                sums[tile][r] = match MOST {
                    SIGNED => lanes.dot_wide(sums[tile][r], quants, words),
                    _ => lanes.dot(sums[tile][r], quants, words),
                };
            }
        }
    }
    sums
}

/// Work that is the same for all instruction sets.
pub(crate) trait WithLanes {
    type Output;

    fn call<L: Lanes>(self, lanes: L) -> Self::Output;
}
