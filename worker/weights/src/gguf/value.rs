//! Metadata values: their types, borrowed from the file, and the typed ways to use them.

use super::cursor::Cursor;
use super::error::{HeaderFault, KeyError};
use super::value_type::ValueType;

impl ValueType {
    /// The type with this number.
    pub(super) fn from_id(id: u32) -> Result<Self, HeaderFault> {
        Ok(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            9 => Self::Array,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            other => return Err(HeaderFault::ValueType(other)),
        })
    }
}

/// A metadata value, borrowed from the file.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // one variant per [`ValueType`]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// A text, not yet checked to be UTF-8.
    String(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// The value of type `kind` at the cursor.
    pub(super) fn read(cursor: &mut Cursor<'a>, kind: ValueType) -> Result<Self, HeaderFault> {
        const WHAT: &str = "a value";
        Ok(match kind {
            ValueType::U8 => Self::U8(u8::from_le_bytes(cursor.word(WHAT)?)),
            ValueType::I8 => Self::I8(i8::from_le_bytes(cursor.word(WHAT)?)),
            ValueType::U16 => Self::U16(u16::from_le_bytes(cursor.word(WHAT)?)),
            ValueType::I16 => Self::I16(i16::from_le_bytes(cursor.word(WHAT)?)),
            ValueType::U32 => Self::U32(u32::from_le_bytes(cursor.word(WHAT)?)),
            ValueType::I32 => Self::I32(i32::from_le_bytes(cursor.word(WHAT)?)),
            ValueType::F32 => Self::F32(f32::from_le_bytes(cursor.word(WHAT)?)),
            ValueType::U64 => Self::U64(u64::from_le_bytes(cursor.word(WHAT)?)),
            ValueType::I64 => Self::I64(i64::from_le_bytes(cursor.word(WHAT)?)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(cursor.word(WHAT)?)),
            ValueType::Bool => match u8::from_le_bytes(cursor.word(WHAT)?) {
                0 => Self::Bool(false),
                1 => Self::Bool(true),
                other => return Err(HeaderFault::Bool(other)),
            },
            ValueType::String => Self::String(cursor.string("a string")?),
            ValueType::Array => Self::Array(Array::read(cursor)?),
        })
    }

    /// The type of the value.
    pub fn kind(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Any integer that fits.
    pub fn integer(&self) -> Option<i64> {
        match *self {
            Self::U8(n) => Some(n.into()),
            Self::I8(n) => Some(n.into()),
            Self::U16(n) => Some(n.into()),
            Self::I16(n) => Some(n.into()),
            Self::U32(n) => Some(n.into()),
            Self::I32(n) => Some(n.into()),
            Self::U64(n) => i64::try_from(n).ok(),
            Self::I64(n) => Some(n),
            _ => None,
        }
    }
}

/// An array of one type, borrowed from the file. Its elements are decoded on demand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    kind: ValueType,
    len: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Self, HeaderFault> {
        let kind = ValueType::from_id(cursor.u32("an array's type")?)?;
        let claimed = cursor.u64("an array's length")?;
        // Each string costs at least the word that holds its length.
        let least = match kind {
            ValueType::Array => return Err(HeaderFault::NestedArray),
            kind => kind.size().unwrap_or(8),
        };
        let most = cursor.left_in_file() / least;
        let len = match usize::try_from(claimed) {
            Ok(len) if claimed <= most => len,
            _ => return Err(HeaderFault::TooMany { what: "array elements", claimed, most }),
        };
        let bytes = match kind.size() {
            Some(size) => cursor.take(claimed * size, "an array")?,
            None => {
                let mut scout = Cursor::resume(cursor);
                for _ in 0..len {
                    scout.string("a string of an array")?;
                }
                let size = scout.position() - cursor.position();
                cursor.take(size, "an array of strings")?
            }
        };
        Ok(Self { kind, len, bytes })
    }

    /// The type of the array's elements.
    pub fn kind(&self) -> ValueType {
        self.kind
    }

    /// The number of the array's elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The array's strings, in order, not checked to be UTF-8; `None` for other types. An empty array of any type
    /// counts as strings: some writers cannot state the type of an empty array.
    pub fn strings(&self) -> Option<Strings<'a>> {
        (self.kind == ValueType::String || self.is_empty()).then_some(Strings { left: self.len, bytes: self.bytes })
    }

    /// The array's integers, of any width, in order; `None` for other types and if one does not fit.
    pub fn integers(&self) -> Option<Vec<i64>> {
        self.elements(Value::integer)
    }

    /// The array's truth values, in order; `None` for other types.
    pub fn bools(&self) -> Option<Vec<bool>> {
        self.elements(|value| match *value {
            Value::Bool(flag) => Some(flag),
            _ => None,
        })
    }

    /// The array's numbers as floats, in order; `None` for strings.
    pub fn floats(&self) -> Option<Vec<f32>> {
        #[allow(clippy::cast_precision_loss)]
        self.elements(|value| match *value {
            Value::F32(x) => Some(x),
            Value::F64(x) => Some(x as f32),
            ref other => other.integer().map(|n| n as f32),
        })
    }

    /// The elements as the file stores them: numbers little endian, each string after its length.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    fn elements<T>(&self, convert: impl Fn(&Value<'a>) -> Option<T>) -> Option<Vec<T>> {
        self.kind.size()?;
        let mut cursor = Cursor::new(self.bytes, self.bytes.len() as u64);
        (0..self.len).map(|_| convert(&Value::read(&mut cursor, self.kind).ok()?)).collect()
    }
}

/// The strings of an [`Array`], in order.
#[derive(Clone, Debug)]
pub struct Strings<'a> {
    left: usize,
    bytes: &'a [u8],
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.bytes.split_first_chunk()?;
        let (string, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        self.bytes = rest;
        self.left = self.left.saturating_sub(1);
        Some(string)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strings<'_> {}

/// A type that a metadata value can be read as.
pub trait FromValue<'a>: Sized {
    /// The wanted type, for messages: "a string".
    const WANTED: &'static str;

    /// The value as this type; an error names the key.
    fn from_value(key: &str, value: Value<'a>) -> Result<Self, KeyError>;
}

fn wrong_type<'a, T: FromValue<'a>>(key: &str, value: Value<'a>) -> KeyError {
    let found = match value {
        Value::Array(array) => format!("an array of {} {}", array.len, array.kind),
        Value::String(text) => format!("a string of {} bytes", text.len()),
        number => format!("{} ({number:?})", number.kind()),
    };
    KeyError::WrongType { key: key.to_owned(), wanted: T::WANTED, found }
}

impl<'a> FromValue<'a> for &'a str {
    const WANTED: &'static str = "a string";

    fn from_value(key: &str, value: Value<'a>) -> Result<Self, KeyError> {
        match value {
            Value::String(text) => std::str::from_utf8(text).map_err(|_| KeyError::NotUtf8(key.to_owned())),
            other => Err(wrong_type::<Self>(key, other)),
        }
    }
}

impl<'a> FromValue<'a> for bool {
    const WANTED: &'static str = "a truth value";

    fn from_value(key: &str, value: Value<'a>) -> Result<Self, KeyError> {
        match value {
            Value::Bool(yes) => Ok(yes),
            other => Err(wrong_type::<Self>(key, other)),
        }
    }
}

impl<'a> FromValue<'a> for f32 {
    const WANTED: &'static str = "a float";

    fn from_value(key: &str, value: Value<'a>) -> Result<Self, KeyError> {
        match value {
            Value::F32(x) => Ok(x),
            Value::F64(x) => Ok(x as f32),
            other => Err(wrong_type::<Self>(key, other)),
        }
    }
}

/// Writers disagree on the width of integers; any that fits will do.
macro_rules! integer_from_value {
    ($($int:ty: $wanted:literal),*) => {$(
        impl<'a> FromValue<'a> for $int {
            const WANTED: &'static str = $wanted;

            fn from_value(key: &str, value: Value<'a>) -> Result<Self, KeyError> {
                value
                    .integer()
                    .and_then(|n| Self::try_from(n).ok())
                    .ok_or_else(|| wrong_type::<Self>(key, value))
            }
        }
    )*};
}

integer_from_value! {
    u32: "an unsigned 32-bit integer",
    u64: "an unsigned integer",
    usize: "an unsigned integer",
    i64: "an integer"
}

impl<'a> FromValue<'a> for Array<'a> {
    const WANTED: &'static str = "an array";

    fn from_value(key: &str, value: Value<'a>) -> Result<Self, KeyError> {
        match value {
            Value::Array(array) => Ok(array),
            other => Err(wrong_type::<Self>(key, other)),
        }
    }
}

impl<'a> FromValue<'a> for Strings<'a> {
    const WANTED: &'static str = "an array of strings";

    fn from_value(key: &str, value: Value<'a>) -> Result<Self, KeyError> {
        match value {
            Value::Array(array) => array.strings(),
            _ => None,
        }
        .ok_or_else(|| wrong_type::<Self>(key, value))
    }
}
