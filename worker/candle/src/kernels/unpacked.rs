//! The form that rows of all block types are unpacked into: 256 elements in 8 groups of 32.

/// Groups of a chunk.
pub(super) const GROUPS: usize = 8;

/// Elements of a group.
pub(super) const GROUP: usize = 32;

/// Elements of a chunk.
pub(super) const CHUNK: usize = GROUPS * GROUP;

/// 256 elements of a matrix. Element `i` of group `g` is `factors[g] · scales[g][i / 2] · quants[g][i] − mins[2 g + i /
/// 16]`.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct UnpackedChunk {
    /// The quants: unsigned up to 31, or signed, by block type (see `Layout::SIGNED`).
    pub(super) quants: [[u8; GROUP]; GROUPS],
    /// One scale for each pair of elements, because the instruction sums products in pairs.
    pub(super) scales: [[i16; GROUP / 2]; GROUPS],
    pub(super) factors: [f32; GROUPS],
    /// One minimum for each half of a group; unused if quants are signed.
    pub(super) mins: [f32; 2 * GROUPS],
}

impl UnpackedChunk {
    /// A chunk of 256 zeros.
    pub(super) const ZERO: Self = Self {
        quants: [[0; GROUP]; GROUPS],
        scales: [[1; GROUP / 2]; GROUPS],
        factors: [0.0; GROUPS],
        mins: [0.0; 2 * GROUPS],
    };
}
