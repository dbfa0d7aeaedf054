//! Block types and the unpacking of each. Layouts are ggml's, spelled out beside the plain code that tests compare them
//! with (`model_boss_weights::gguf::dequantise`). Products are computed elsewhere in this folder.

use model_boss_weights::gguf::TensorType;

use crate::kernels::unpacked::{GROUP, GROUPS, UnpackedChunk};

/// A block type that products can be computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the formats' own")]
pub(crate) enum Format {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

impl Format {
    /// Every format with its name in files and the places of the f16 scales in a block.
    const TABLE: [(Self, TensorType, &'static [usize]); 10] = [
        (Self::Q4_0, TensorType::Q4_0, &[0]),
        (Self::Q4_1, TensorType::Q4_1, &[0, 2]),
        (Self::Q5_0, TensorType::Q5_0, &[0]),
        (Self::Q5_1, TensorType::Q5_1, &[0, 2]),
        (Self::Q8_0, TensorType::Q8_0, &[0]),
        (Self::Q2K, TensorType::Q2_K, &[80, 82]),
        (Self::Q3K, TensorType::Q3_K, &[108]),
        (Self::Q4K, TensorType::Q4_K, &[0, 2]),
        (Self::Q5K, TensorType::Q5_K, &[0, 2]),
        (Self::Q6K, TensorType::Q6_K, &[208]),
    ];

    pub(super) fn of(kind: TensorType) -> Option<Self> {
        Self::TABLE.iter().find(|(_, known, _)| *known == kind).map(|(format, ..)| *format)
    }

    pub(super) fn kind(self) -> TensorType {
        Self::TABLE.iter().find(|(format, ..)| *format == self).map_or(TensorType::Q8_0, |(_, kind, _)| *kind)
    }

    pub(super) fn block_len(self) -> usize {
        self.kind().block_len() as usize
    }

    pub(super) fn block_bytes(self) -> usize {
        self.kind().block_bytes() as usize
    }

    /// Whether no scale of a block, and so no element, is infinity or NaN.
    pub(super) fn scales_are_finite(self, blocks: &[u8]) -> bool {
        const EXPONENT: u8 = 0x7c;
        let places = Self::TABLE.iter().find(|(format, ..)| *format == self).map_or(&[][..], |(.., places)| *places);
        blocks
            .chunks_exact(self.block_bytes())
            .all(|block| places.iter().all(|at| block[at + 1] & EXPONENT != EXPONENT))
    }
}

/// The unpacking of blocks into chunks.
pub(super) trait Layout {
    /// Whether unpacked quants are signed, without a minimum to subtract.
    const SIGNED: bool;
    /// Bytes of the blocks of 256 elements.
    const CHUNK_BYTES: usize;

    /// Unpacks the blocks of a chunk. At a row's end there may be fewer: then the rest of the chunk is not changed.
    fn unpack(blocks: &[u8], chunk: &mut UnpackedChunk);
}

/// Converts an f16 that is neither infinity nor NaN: matrices with those were refused.
#[inline(always)]
fn f16(bytes: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(bytes));
    // The shifted bits have the exponent in f32's place, 112 too small, also for subnormals. A product with a power of
    // two is exact.
    const TWO_TO_112: f32 = f32::from_bits((127 + 112) << 23);
    f32::from_bits((bits & 0x8000) << 16 | (bits & 0x7fff) << 13) * TWO_TO_112
}

/// A field of a block with a length known at compile time.
#[inline(always)]
fn field<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    block.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

/// Calls `unpack` for each of the blocks of 32 elements with the number of its group.
#[inline(always)]
fn blocks_of_32(blocks: &[u8], bytes: usize, mut unpack: impl FnMut(usize, &[u8])) {
    for (g, block) in blocks.chunks_exact(bytes).enumerate().take(GROUPS) {
        unpack(g, block);
    }
}

/// The 32 nibbles of 16 bytes: first the low ones, then the high ones.
#[inline(always)]
fn nibbles(quants: &[u8; 16]) -> [u8; GROUP] {
    let mut out = [0; GROUP];
    for i in 0..16 {
        out[i] = quants[i] & 15;
        out[i + 16] = quants[i] >> 4;
    }
    out
}

/// Sets bit 4 of element `i` to bit `i` of `high`.
#[inline(always)]
fn add_fifth_bits(quants: &mut [u8; GROUP], high: [u8; 4]) {
    for i in 0..GROUP {
        quants[i] |= (high[i / 8] >> (i % 8) & 1) << 4;
    }
}

#[inline(always)]
fn minus(quants: [u8; GROUP], offset: u8) -> [u8; GROUP] {
    quants.map(|quant| quant.wrapping_sub(offset))
}

pub(super) struct Q4_0;

impl Layout for Q4_0 {
    const SIGNED: bool = true;
    const CHUNK_BYTES: usize = GROUPS * 18;

    #[inline(always)]
    fn unpack(blocks: &[u8], chunk: &mut UnpackedChunk) {
        blocks_of_32(blocks, 18, |g, block| {
            chunk.factors[g] = f16(field(block, 0));
            chunk.quants[g] = minus(nibbles(&field(block, 2)), 8);
        });
    }
}

pub(super) struct Q4_1;

impl Layout for Q4_1 {
    const SIGNED: bool = false;
    const CHUNK_BYTES: usize = GROUPS * 20;

    #[inline(always)]
    fn unpack(blocks: &[u8], chunk: &mut UnpackedChunk) {
        blocks_of_32(blocks, 20, |g, block| {
            chunk.factors[g] = f16(field(block, 0));
            let min = -f16(field(block, 2));
            (chunk.mins[2 * g], chunk.mins[2 * g + 1]) = (min, min);
            chunk.quants[g] = nibbles(&field(block, 4));
        });
    }
}

pub(super) struct Q5_0;

impl Layout for Q5_0 {
    const SIGNED: bool = true;
    const CHUNK_BYTES: usize = GROUPS * 22;

    #[inline(always)]
    fn unpack(blocks: &[u8], chunk: &mut UnpackedChunk) {
        blocks_of_32(blocks, 22, |g, block| {
            chunk.factors[g] = f16(field(block, 0));
            let mut quants = nibbles(&field(block, 6));
            add_fifth_bits(&mut quants, field(block, 2));
            chunk.quants[g] = minus(quants, 16);
        });
    }
}

pub(super) struct Q5_1;

impl Layout for Q5_1 {
    const SIGNED: bool = false;
    const CHUNK_BYTES: usize = GROUPS * 24;

    #[inline(always)]
    fn unpack(blocks: &[u8], chunk: &mut UnpackedChunk) {
        blocks_of_32(blocks, 24, |g, block| {
            chunk.factors[g] = f16(field(block, 0));
            let min = -f16(field(block, 2));
            (chunk.mins[2 * g], chunk.mins[2 * g + 1]) = (min, min);
            let mut quants = nibbles(&field(block, 8));
            add_fifth_bits(&mut quants, field(block, 4));
            chunk.quants[g] = quants;
        });
    }
}

pub(super) struct Q8_0;

impl Layout for Q8_0 {
    const SIGNED: bool = true;
    const CHUNK_BYTES: usize = GROUPS * 34;

    #[inline(always)]
    fn unpack(blocks: &[u8], chunk: &mut UnpackedChunk) {
        blocks_of_32(blocks, 34, |g, block| {
            chunk.factors[g] = f16(field(block, 0));
            chunk.quants[g] = field(block, 2);
        });
    }
}

pub(super) struct Q2K;

impl Layout for Q2K {
    const SIGNED: bool = false;
    const CHUNK_BYTES: usize = 84;

    #[inline(always)]
    fn unpack(block: &[u8], chunk: &mut UnpackedChunk) {
        let packed: [u8; 16] = field(block, 0);
        chunk.quants = two_bits(&field(block, 16));
        chunk.factors = [f16(field(block, 80)); GROUPS];
        let dmin = f16(field(block, 82));
        for (min, packed) in chunk.mins.iter_mut().zip(packed) {
            *min = dmin * f32::from(packed >> 4);
        }
        set_scales(chunk, packed.map(|packed| i16::from(packed & 15)));
    }
}

pub(super) struct Q3K;

impl Layout for Q3K {
    const SIGNED: bool = true;
    const CHUNK_BYTES: usize = 110;

    #[inline(always)]
    fn unpack(block: &[u8], chunk: &mut UnpackedChunk) {
        let high: [u8; 32] = field(block, 0);
        chunk.quants = two_bits(&field(block, 32));
        for (g, quants) in chunk.quants.iter_mut().enumerate() {
            for i in 0..GROUP {
                quants[i] = (quants[i] | (high[i] >> g & 1) << 2).wrapping_sub(4);
            }
        }
        let [a, b, top]: [u32; 3] = std::array::from_fn(|i| u32::from_le_bytes(field(block, 96 + 4 * i)));
        let (nibble, two) = (0x0f0f_0f0f, 0x0303_0303);
        let words = [
            a & nibble | (top & two) << 4,
            b & nibble | (top >> 2 & two) << 4,
            a >> 4 & nibble | (top >> 4 & two) << 4,
            b >> 4 & nibble | (top >> 6 & two) << 4,
        ];
        let packed = words.map(u32::to_le_bytes);
        set_scales(chunk, std::array::from_fn(|j| i16::from(packed[j / 4][j % 4]) - 32));
        chunk.factors = [f16(field(block, 108)); GROUPS];
    }
}

pub(super) struct Q4K;

impl Layout for Q4K {
    const SIGNED: bool = false;
    const CHUNK_BYTES: usize = 144;

    #[inline(always)]
    fn unpack(block: &[u8], chunk: &mut UnpackedChunk) {
        chunk.quants = nibbles_of_64(&field(block, 16));
        scales_and_mins(block, chunk);
    }
}

pub(super) struct Q5K;

impl Layout for Q5K {
    const SIGNED: bool = false;
    const CHUNK_BYTES: usize = 176;

    #[inline(always)]
    fn unpack(block: &[u8], chunk: &mut UnpackedChunk) {
        let high: [u8; 32] = field(block, 16);
        chunk.quants = nibbles_of_64(&field(block, 48));
        for (g, quants) in chunk.quants.iter_mut().enumerate() {
            for i in 0..GROUP {
                quants[i] |= (high[i] >> g & 1) << 4;
            }
        }
        scales_and_mins(block, chunk);
    }
}

pub(super) struct Q6K;

impl Layout for Q6K {
    const SIGNED: bool = true;
    const CHUNK_BYTES: usize = 210;

    #[inline(always)]
    fn unpack(block: &[u8], chunk: &mut UnpackedChunk) {
        for half in 0..2 {
            let low: [u8; 64] = field(block, 64 * half);
            let high: [u8; 32] = field(block, 128 + 32 * half);
            for quarter in 0..4 {
                let quants = &mut chunk.quants[4 * half + quarter];
                for i in 0..GROUP {
                    let nibble = low[32 * (quarter % 2) + i] >> (4 * (quarter / 2)) & 15;
                    quants[i] = (nibble | (high[i] >> (2 * quarter) & 3) << 4).wrapping_sub(32);
                }
            }
        }
        set_scales(chunk, field::<16>(block, 192).map(|scale| i16::from(scale as i8)));
        chunk.factors = [f16(field(block, 208)); GROUPS];
    }
}

/// Unpacks 2-bit quants. Each half of 128 elements has 32 bytes, the first 32 elements in the lowest bits.
#[inline(always)]
fn two_bits(packed: &[u8; 64]) -> [[u8; GROUP]; GROUPS] {
    let mut quants = [[0; GROUP]; GROUPS];
    for (g, quants) in quants.iter_mut().enumerate() {
        for i in 0..GROUP {
            quants[i] = packed[32 * (g / 4) + i] >> (2 * (g % 4)) & 3;
        }
    }
    quants
}

/// Unpacks 4-bit quants. Each 64 elements have 32 bytes, the first 32 elements in the low nibbles.
#[inline(always)]
fn nibbles_of_64(packed: &[u8; 128]) -> [[u8; GROUP]; GROUPS] {
    let mut quants = [[0; GROUP]; GROUPS];
    for (g, quants) in quants.iter_mut().enumerate() {
        for i in 0..GROUP {
            quants[i] = packed[32 * (g / 2) + i] >> (4 * (g % 2)) & 15;
        }
    }
    quants
}

/// Sets a scale for each 16 elements.
#[inline(always)]
fn set_scales(chunk: &mut UnpackedChunk, scales: [i16; 2 * GROUPS]) {
    for (g, pairs) in chunk.scales.iter_mut().enumerate() {
        pairs[..8].fill(scales[2 * g]);
        pairs[8..].fill(scales[2 * g + 1]);
    }
}

/// Unpacks the head of a Q4_K or Q5_K block: two factors, then a scale and a minimum of 6 bits for each group. The
/// first four of each are in the low bits of four bytes. The others consist of nibbles after these bytes, and of the
/// bytes' two high bits.
#[inline(always)]
fn scales_and_mins(block: &[u8], chunk: &mut UnpackedChunk) {
    let (d, dmin) = (f16(field(block, 0)), f16(field(block, 2)));
    let [a, b, c]: [u32; 3] = std::array::from_fn(|i| u32::from_le_bytes(field(block, 4 + 4 * i)));
    let (six, nibble, two) = (0x3f3f_3f3f, 0x0f0f_0f0f, 0x0303_0303);
    let scales = [a & six, c & nibble | (a >> 6 & two) << 4].map(u32::to_le_bytes);
    let mins = [b & six, c >> 4 & nibble | (b >> 6 & two) << 4].map(u32::to_le_bytes);
    for g in 0..GROUPS {
        chunk.scales[g] = [i16::from(scales[g / 4][g % 4]); GROUP / 2];
        let min = dmin * f32::from(mins[g / 4][g % 4]);
        (chunk.mins[2 * g], chunk.mins[2 * g + 1]) = (min, min);
    }
    chunk.factors = [d; GROUPS];
}
