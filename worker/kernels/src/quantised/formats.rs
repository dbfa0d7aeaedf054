//! The block types that products are computed with. Layouts are ggml's, spelled out beside the plain code that tests
//! compare with (`model_boss_weights::gguf::dequantise`).

use model_boss_weights::gguf::TensorType;

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
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
    Tq1_0,
    Tq2_0,
    I8Affine,
}

impl Format {
    /// Every format with its name in files and the places of the f16 scales in a block.
    const TABLE: [(Self, TensorType, &'static [usize]); 16] = [
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
        (Self::Iq4Nl, TensorType::IQ4_NL, &[0]),
        (Self::Iq4Xs, TensorType::IQ4_XS, &[0]),
        // Its scale is a power of two, which is always finite.
        (Self::Mxfp4, TensorType::MXFP4, &[]),
        (Self::Tq1_0, TensorType::TQ1_0, &[52]),
        (Self::Tq2_0, TensorType::TQ2_0, &[64]),
        (Self::I8Affine, TensorType::I8_AFFINE, &[0, 2, 4]),
    ];

    pub(super) fn of(kind: TensorType) -> Option<Self> {
        Self::TABLE.iter().find(|(_, known, _)| *known == kind).map(|(format, ..)| *format)
    }

    /// The types of all formats.
    #[cfg(test)]
    pub(crate) fn kinds() -> [TensorType; 16] {
        Self::TABLE.map(|(_, kind, _)| kind)
    }

    pub(super) fn kind(self) -> TensorType {
        self.row().1
    }

    pub(super) fn block_len(self) -> usize {
        self.kind().block_len() as usize
    }

    pub(super) fn block_bytes(self) -> usize {
        self.kind().block_bytes() as usize
    }

    /// Offsets of the f16 scales in a block.
    pub(super) fn scales(self) -> &'static [usize] {
        self.row().2
    }

    /// Whether no scale of a block, and so no element, is infinity or NaN.
    pub(super) fn scales_are_finite(self, blocks: &[u8]) -> bool {
        const EXPONENT: u8 = 0x7c;
        let places = self.scales();
        blocks
            .chunks_exact(self.block_bytes())
            .all(|block| places.iter().all(|at| block[at + 1] & EXPONENT != EXPONENT))
    }

    fn row(self) -> &'static (Self, TensorType, &'static [usize]) {
        // The table has its rows in the order of the variants, which a test checks.
        &Self::TABLE[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_its_row() {
        for (format, kind, _) in Format::TABLE {
            assert_eq!((format.kind(), Format::of(kind)), (kind, Some(format)));
        }
    }
}
