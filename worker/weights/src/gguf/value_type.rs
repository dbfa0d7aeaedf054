//! The types that a metadata value can have. The module knows numbers and sizes, and reads no bytes.

use std::fmt;

/// The type of a metadata value, by the number the format gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ValueType {
    /// An unsigned integer of 8 bits.
    U8 = 0,
    /// A signed integer of 8 bits.
    I8 = 1,
    /// An unsigned integer of 16 bits.
    U16 = 2,
    /// A signed integer of 16 bits.
    I16 = 3,
    /// An unsigned integer of 32 bits.
    U32 = 4,
    /// A signed integer of 32 bits.
    I32 = 5,
    /// 32-bit float.
    F32 = 6,
    /// One byte, 0 or 1.
    Bool = 7,
    /// Bytes that ought to be UTF-8.
    String = 8,
    /// A typed array.
    Array = 9,
    /// An unsigned integer of 64 bits.
    U64 = 10,
    /// A signed integer of 64 bits.
    I64 = 11,
    /// 64-bit float.
    F64 = 12,
}

impl ValueType {
    /// Bytes of one value; `None` for types whose values have their own length.
    pub fn size(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        })
    }
}
