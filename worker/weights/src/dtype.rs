//! Element types of stored tensors, with their names and sizes. Computing with them is not part of this crate.

use std::fmt;

/// The type of a stored tensor's elements, by the names of the safetensors format.
#[allow(missing_docs, reason = "the names are the format's own and say it all")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    Bool,
    F4,
    F6E2M3,
    F6E3M2,
    U8,
    I8,
    F8E5M2,
    F8E4M3,
    F8E8M0,
    F8E4M3Fnuz,
    F8E5M2Fnuz,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    C64,
    F64,
    I64,
    U64,
}

impl Dtype {
    /// Every type with its name in safetensors headers and the bits of one element.
    const TABLE: [(Self, &'static str, u64); 22] = [
        (Self::Bool, "BOOL", 8),
        (Self::F4, "F4", 4),
        (Self::F6E2M3, "F6_E2M3", 6),
        (Self::F6E3M2, "F6_E3M2", 6),
        (Self::U8, "U8", 8),
        (Self::I8, "I8", 8),
        (Self::F8E5M2, "F8_E5M2", 8),
        (Self::F8E4M3, "F8_E4M3", 8),
        (Self::F8E8M0, "F8_E8M0", 8),
        (Self::F8E4M3Fnuz, "F8_E4M3FNUZ", 8),
        (Self::F8E5M2Fnuz, "F8_E5M2FNUZ", 8),
        (Self::I16, "I16", 16),
        (Self::U16, "U16", 16),
        (Self::F16, "F16", 16),
        (Self::BF16, "BF16", 16),
        (Self::I32, "I32", 32),
        (Self::U32, "U32", 32),
        (Self::F32, "F32", 32),
        (Self::C64, "C64", 64),
        (Self::F64, "F64", 64),
        (Self::I64, "I64", 64),
        (Self::U64, "U64", 64),
    ];

    /// The type that a safetensors header names.
    pub(crate) fn from_safetensors(name: &str) -> Option<Self> {
        Self::TABLE.iter().find(|(_, known, _)| *known == name).map(|(dtype, ..)| *dtype)
    }

    fn row(self) -> (&'static str, u64) {
        Self::TABLE.iter().find(|(dtype, ..)| *dtype == self).map_or(("?", 0), |(_, name, bits)| (name, *bits))
    }

    /// The type's name.
    pub fn as_str(self) -> &'static str {
        self.row().0
    }

    /// Bits of one element.
    pub fn bits(self) -> u64 {
        self.row().1
    }

    /// Bytes of a tensor of this shape; `None` if the number overflows, or if the last byte would be used only in part.
    pub fn bytes_of(self, shape: &[usize]) -> Option<u64> {
        let elements = shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(u64::try_from(dim).ok()?))?;
        let bits = elements.checked_mul(self.bits())?;
        (bits % 8 == 0).then_some(bits / 8)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_its_own_name_and_size() {
        for (dtype, name, bits) in Dtype::TABLE {
            assert_eq!(Dtype::from_safetensors(name), Some(dtype));
            assert_eq!((dtype.as_str(), dtype.bits()), (name, bits));
        }
    }

    #[test]
    fn sizes_are_exact_or_absent() {
        assert_eq!(Dtype::F16.bytes_of(&[3, 5]), Some(30));
        assert_eq!(Dtype::F32.bytes_of(&[]), Some(4), "a scalar");
        assert_eq!(Dtype::F32.bytes_of(&[0, 7]), Some(0));
        assert_eq!(Dtype::F4.bytes_of(&[3]), None, "a byte and a half");
        assert_eq!(Dtype::F32.bytes_of(&[usize::MAX, 2]), None);
        assert_eq!(Dtype::F64.bytes_of(&[usize::MAX / 4]), None);
    }
}
