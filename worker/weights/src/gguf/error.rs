//! Faults of a GGUF header. They have no path: [`super::FileError`] adds the file.

use std::fmt;

use super::tensor_type::{TensorType, UnknownType};
use super::value_type::ValueType;

/// An invalid header: the part that was being read, and its fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct HeaderError {
    /// The part that was being read.
    pub place: HeaderPlace,
    /// The fault that was found.
    #[source]
    pub fault: HeaderFault,
}

/// A part of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderPlace {
    /// Magic, version and counts.
    Start,
    /// The name of the n-th key, from 0.
    KeyName(u64),
    /// The value of the key with this name.
    Key(String),
    /// The name of the n-th tensor, from 0.
    TensorName(u64),
    /// The record of the tensor with this name.
    Tensor(String),
}

impl HeaderPlace {
    /// An error with this place and a fault.
    pub(super) fn fault(self, fault: HeaderFault) -> HeaderError {
        HeaderError { place: self, fault }
    }
}

impl fmt::Display for HeaderPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => write!(f, "GGUF header"),
            Self::KeyName(number) => write!(f, "GGUF metadata key number {number}"),
            Self::Key(key) => write!(f, "GGUF metadata key `{}`", key.escape_debug()),
            Self::TensorName(number) => write!(f, "GGUF tensor number {number}"),
            Self::Tensor(name) => write!(f, "GGUF tensor `{}`", name.escape_debug()),
        }
    }
}

/// A fault of a part of a header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// The file does not begin with the magic of GGUF; its first bytes.
    #[error("not a GGUF file (it begins with {})", .0.escape_ascii())]
    NotGguf(Vec<u8>),
    /// The file has a format of ggml from before GGUF, with this name.
    #[error("this is a {0} file, a format from before GGUF; convert the model again")]
    BeforeGguf(&'static str),
    /// The file was written for big-endian machines.
    #[error("the file is big-endian; convert the model again on (or for) a little-endian machine")]
    BigEndian,
    /// The file has a version that this reader does not support.
    #[error("GGUF version {0} is not supported (2 and 3 are); convert the model again")]
    Version(u32),
    /// The file ends too early.
    #[error("{what} needs {needs} bytes at offset {at}, but the file ends at {file_len}: it is cut short or damaged")]
    Truncated {
        /// The part that was being read.
        what: &'static str,
        /// Offset in the file.
        at: u64,
        /// Bytes that the part needs.
        needs: u64,
        /// Length of the file.
        file_len: u64,
    },
    /// Only a prefix of the file was given, and the header reaches beyond it.
    #[error("the header reaches at least to offset {until}, beyond the part that was read")]
    Incomplete {
        /// The number of bytes to read before the next attempt, at least.
        until: u64,
    },
    /// A count is greater than the file could hold, or than this reader's limit.
    #[error("claims {claimed} {what}; there can be at most {most}")]
    TooMany {
        /// The counted items, in words.
        what: &'static str,
        /// The count that the file has.
        claimed: u64,
        /// The greatest count by the file's size or this reader's limit.
        most: u64,
    },
    /// A name is not UTF-8.
    #[error("the name is not UTF-8")]
    NameNotUtf8,
    /// A name is longer than the format allows; its length in bytes.
    #[error("the name is {0} bytes long; the format allows 65535")]
    NameTooLong(u64),
    /// A name occurs twice.
    #[error("the name stands twice in the file")]
    Duplicate,
    /// The number of a value type does not exist in the format.
    #[error("unknown value type {0}")]
    ValueType(u32),
    /// A value is an array of arrays.
    #[error("an array of arrays, which no known key has")]
    NestedArray,
    /// A truth value is neither 0 nor 1.
    #[error("a truth value of {0}")]
    Bool(u8),
    /// The alignment is no power of two up to 1 MiB.
    #[error("alignment {0} is not a power of two between 1 and 1048576")]
    Alignment(u64),
    /// The alignment key holds something other than an unsigned integer.
    #[error("the alignment is a {0}, not an unsigned integer")]
    AlignmentType(ValueType),
    /// A tensor has more than four dimensions.
    #[error("{0} dimensions; the format allows 4")]
    Rank(u32),
    /// The dimension of this number has length zero.
    #[error("dimension {0} is zero")]
    ZeroDimension(usize),
    /// The number of elements or bytes does not fit in 64 bits.
    #[error("its size in elements or bytes does not fit in 64 bits")]
    SizeOverflow,
    /// A tensor's type has no known layout.
    #[error(transparent)]
    TensorType(#[from] UnknownType),
    /// A tensor's rows are no whole number of blocks.
    #[error("rows of {row} elements are no whole number of {kind} blocks of {block}")]
    PartialBlock {
        /// The tensor's type.
        kind: TensorType,
        /// Elements in a row.
        row: u64,
        /// Elements in a block.
        block: u64,
    },
    /// A tensor's offset is not a multiple of the alignment.
    #[error("its offset {offset} is no multiple of the alignment {alignment}")]
    Unaligned {
        /// Offset from the start of the data, in bytes.
        offset: u64,
        /// The alignment of this file, in bytes.
        alignment: u64,
    },
    /// A tensor's bytes exceed the file.
    #[error(
        "its bytes {offset}+{size} of the data do not lie inside the file (which holds {data} bytes of data): it is cut \
         short or damaged"
    )]
    OutsideFile {
        /// Offset from the start of the data, in bytes.
        offset: u64,
        /// Bytes that the tensor needs.
        size: u64,
        /// Bytes of data in the file.
        data: u64,
    },
    /// A tensor shares bytes with the tensor of this name.
    #[error("its bytes overlap those of tensor `{}`", .0.escape_debug())]
    Overlap(String),
}

/// The reason why a key could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The key does not exist.
    #[error("the GGUF file lacks the metadata key `{0}`")]
    Missing(String),
    /// The key has another type.
    #[error("GGUF metadata key `{key}` should be {wanted}, but is {found}")]
    WrongType {
        /// The name of the key.
        key: String,
        /// The types that the key's reader can use.
        wanted: &'static str,
        /// The type that the file holds.
        found: String,
    },
    /// The text of the key with this name is not UTF-8.
    #[error("GGUF metadata key `{0}` is not UTF-8 text")]
    NotUtf8(String),
}
