//! A chunk of activations in 8 bits, and how it is made.

/// Groups of a chunk.
pub(crate) const GROUPS: usize = 8;

/// Elements of a group. They share a scale.
pub(crate) const GROUP: usize = 32;

/// Elements of a chunk.
pub(super) const CHUNK: usize = GROUPS * GROUP;

/// 32-bit words of a group, each with four quants.
pub(super) const WORDS: usize = GROUP / 4;

/// The least number of elements for which other threads are used: waking them costs more than rounding fewer.
pub(super) const WORTH_SHARING: usize = 1 << 16;

/// A chunk of 256 activations. Element `i` of group `g` is `scales[g] · quant(g, i)`.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct Chunk8 {
    /// Quants between −127 and 127, four to a word in the machine's order.
    pub(crate) words: [[i32; WORDS]; GROUPS],
    pub(crate) scales: [f32; GROUPS],
    /// −32 times the sums of 16 quants each. A product that uses the weights' quants (−32 to 31) plus 32, so that they
    /// are unsigned, adds these values as a correction.
    pub(crate) offsets: [i32; 2 * GROUPS],
    /// The sums of 16 quants each, as floating-point numbers.
    pub(crate) half_sums: [f32; 2 * GROUPS],
    /// Sums of whole groups, as floating-point numbers.
    pub(crate) group_sums: [f32; GROUPS],
}

impl Chunk8 {
    pub(crate) const ZERO: Self = Self {
        words: [[0; WORDS]; GROUPS],
        scales: [0.0; GROUPS],
        offsets: [0; 2 * GROUPS],
        half_sums: [0.0; 2 * GROUPS],
        group_sums: [0.0; GROUPS],
    };
}

/// Rounds a row.
pub(super) struct QuantiseRow<'a> {
    pub(super) x: &'a [f32],
    pub(super) chunks: &'a mut [Chunk8],
}

impl pulp::NullaryFnOnce for QuantiseRow<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (x, chunk) in self.x.chunks(CHUNK).zip(self.chunks) {
            for (g, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
                quantise_group(x, chunk, g);
            }
        }
    }
}

#[inline(always)]
fn quantise_group(x: &[f32; GROUP], chunk: &mut Chunk8, g: usize) {
    // The bits are compared as integers. Infinity and NaN are then larger than all numbers, and reach the scale and
    // with it every result.
    let largest = f32::from_bits(x.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff)));
    let scale = largest / 127.0;
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    // The loops are simple and separate, so that each is compiled to vector instructions. Adding 1.5 · 2^23 rounds to
    // the nearest whole number, with ties to even, and leaves it in the low bits. Infinity and NaN leave arbitrary
    // bits, which the scale makes irrelevant.
    const ROUND: f32 = 12_582_912.0;
    let mut quants = [0_i8; GROUP];
    for (x, quant) in x.iter().zip(&mut quants) {
        *quant = (x * inverse + ROUND).to_bits() as i8;
    }
    let [first, second] = pulp::cast::<_, [[i8; GROUP / 2]; 2]>(quants);
    let sum = |quants: [i8; GROUP / 2]| quants.into_iter().fold(0, |sum, quant| sum + i32::from(quant));
    let sums = [sum(first), sum(second)];
    chunk.words[g] = pulp::cast(quants);
    chunk.scales[g] = scale;
    chunk.offsets[2 * g] = -32 * sums[0];
    chunk.offsets[2 * g + 1] = -32 * sums[1];
    chunk.half_sums[2 * g] = scale * sums[0] as f32;
    chunk.half_sums[2 * g + 1] = scale * sums[1] as f32;
    chunk.group_sums[g] = scale * (sums[0] + sums[1]) as f32;
}
