//! The types a tensor's elements can have: names, block sizes, and which of them this project computes with.

use std::fmt;

/// The type of a tensor's elements, by the number in the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)] // ggml's own names; the table below says what they are
#[repr(u32)]
pub enum TensorType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q8_1 = 9,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    Q8_K = 15,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I8 = 24,
    I16 = 25,
    I32 = 26,
    I64 = 27,
    F64 = 28,
    IQ1_M = 29,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    MXFP4 = 39,
    NVFP4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
    F8_E4M3 = NOT_IN_GGUF,
    I8_AFFINE = NOT_IN_GGUF + 1,
}

/// Numbers from here on are types that no GGUF file has: this project makes them of other files.
const NOT_IN_GGUF: u32 = 1 << 31;

/// Elements of a block of [`TensorType::F8_E4M3`]: 64 bytes behind a factor as f32. An element is its byte's bits as an
/// f16 (the sign, then four bits of exponent and three of mantissa from bit 13 down), times the factor.
pub const F8_BLOCK: usize = 64;

/// The factor of a block of [`TensorType::F8_E4M3`] whose scale is 1, by the biases of both exponents.
pub const F8_FACTOR: f32 = 256.0;

/// Every known type with its name, the elements of a block and the bytes of a block.
const TYPES: [(TensorType, &str, u64, u64); 37] = {
    use TensorType::*;
    [
        (F32, "F32", 1, 4),
        (F16, "F16", 1, 2),
        (Q4_0, "Q4_0", 32, 18),
        (Q4_1, "Q4_1", 32, 20),
        (Q5_0, "Q5_0", 32, 22),
        (Q5_1, "Q5_1", 32, 24),
        (Q8_0, "Q8_0", 32, 34),
        (Q8_1, "Q8_1", 32, 36),
        (Q2_K, "Q2_K", 256, 84),
        (Q3_K, "Q3_K", 256, 110),
        (Q4_K, "Q4_K", 256, 144),
        (Q5_K, "Q5_K", 256, 176),
        (Q6_K, "Q6_K", 256, 210),
        (Q8_K, "Q8_K", 256, 292),
        (IQ2_XXS, "IQ2_XXS", 256, 66),
        (IQ2_XS, "IQ2_XS", 256, 74),
        (IQ3_XXS, "IQ3_XXS", 256, 98),
        (IQ1_S, "IQ1_S", 256, 50),
        (IQ4_NL, "IQ4_NL", 32, 18),
        (IQ3_S, "IQ3_S", 256, 110),
        (IQ2_S, "IQ2_S", 256, 82),
        (IQ4_XS, "IQ4_XS", 256, 136),
        (I8, "I8", 1, 1),
        (I16, "I16", 1, 2),
        (I32, "I32", 1, 4),
        (I64, "I64", 1, 8),
        (F64, "F64", 1, 8),
        (IQ1_M, "IQ1_M", 256, 56),
        (BF16, "BF16", 1, 2),
        (TQ1_0, "TQ1_0", 256, 54),
        (TQ2_0, "TQ2_0", 256, 66),
        (MXFP4, "MXFP4", 32, 17),
        (NVFP4, "NVFP4", 64, 36),
        (Q1_0, "Q1_0", 128, 18),
        (Q2_0, "Q2_0", 64, 18),
        (F8_E4M3, "F8_E4M3", F8_BLOCK as u64, F8_BLOCK as u64 + 4),
        (I8_AFFINE, "I8_AFFINE", 32, 38),
    ]
};

/// Numbers that once were types and no longer are.
const REMOVED: [(u32, &str); 8] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

impl TensorType {
    /// The type with this number.
    pub fn from_id(id: u32) -> Result<Self, UnknownType> {
        if let Some(&(kind, ..)) = TYPES.iter().find(|(kind, ..)| *kind as u32 == id && id < NOT_IN_GGUF) {
            return Ok(kind);
        }
        match REMOVED.iter().find(|(removed, _)| *removed == id) {
            Some(&(_, name)) => Err(UnknownType::Removed(name)),
            None => Err(UnknownType::Unheard(id)),
        }
    }

    /// ggml's name for the type.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Elements of a block.
    pub fn block_len(self) -> u64 {
        self.row().2
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> u64 {
        self.row().3
    }

    /// Bytes of `elements`; `None` where they are no whole number of blocks, or too many.
    pub fn bytes_of(self, elements: u64) -> Option<u64> {
        let (_, _, len, bytes) = self.row();
        if elements.is_multiple_of(len) { (elements / len).checked_mul(bytes) } else { None }
    }

    /// Whether this project computes with the type.
    pub fn is_supported(self) -> bool {
        // Q8_1 and Q8_K are ggml's types of activations within a product; no program writes weights in them.
        matches!(
            self,
            Self::F32
                | Self::F16
                | Self::BF16
                | Self::Q4_0
                | Self::Q4_1
                | Self::Q5_0
                | Self::Q5_1
                | Self::Q8_0
                | Self::Q2_K
                | Self::Q3_K
                | Self::Q4_K
                | Self::Q5_K
                | Self::Q6_K
                | Self::IQ4_NL
                | Self::IQ4_XS
                | Self::TQ1_0
                | Self::TQ2_0
                | Self::MXFP4
                | Self::F8_E4M3
                | Self::I8_AFFINE
        )
    }

    fn row(self) -> (Self, &'static str, u64, u64) {
        // Every variant is in the table, which a test checks.
        TYPES.into_iter().find(|(kind, ..)| *kind == self).unwrap_or(TYPES[0])
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The reason why a type number has no known layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownType {
    /// The number of a type that was removed from the format.
    #[error("its type {0} was removed from the format; convert the model again")]
    Removed(&'static str),
    /// A number that this reader does not support: it is newer, or invalid.
    #[error("its type number {0} is not known to this version")]
    Unheard(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_holds_every_type_once_in_order() {
        for pair in TYPES.windows(2) {
            assert!((pair[0].0 as u32) < pair[1].0 as u32);
        }
        for (kind, name, len, bytes) in TYPES {
            assert_eq!(TensorType::from_id(kind as u32).ok(), ((kind as u32) < NOT_IN_GGUF).then_some(kind));
            assert_eq!((kind.name(), kind.block_len(), kind.block_bytes()), (name, len, bytes));
            assert_eq!(format!("{kind:?}"), name);
        }
        // Every number below the highest is a type, or was removed from the format.
        for id in 0..=42 {
            assert!(!matches!(TensorType::from_id(id), Err(UnknownType::Unheard(_))), "{id}");
        }
        assert_eq!(TensorType::from_id(43), Err(UnknownType::Unheard(43)));
    }

    #[test]
    fn fa_2_supported_types_are_those_with_products() {
        let supported: Vec<_> = TYPES.into_iter().filter(|(kind, ..)| kind.is_supported()).map(|row| row.1).collect();
        let expected = "F32 F16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS BF16 TQ1_0 TQ2_0 \
                        MXFP4 F8_E4M3 I8_AFFINE";
        assert_eq!(supported.join(" "), expected);
    }
}
