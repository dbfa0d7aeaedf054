//! Faults of a GGUF header. Knows no paths: [`super::FileError`] adds the file.

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
    /// A key's value.
    Key(String),
    /// The name of the n-th tensor, from 0.
    TensorName(u64),
    /// A tensor's record.
    Tensor(String),
}

impl HeaderPlace {
    /// This place's error.
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
    /// Another kind of file.
    #[error("not a GGUF file (it begins with {})", .0.escape_ascii())]
    NotGguf(Vec<u8>),
    /// A format from before GGUF.
    #[error("this is a {0} file, a format from before GGUF; convert the model again")]
    BeforeGguf(&'static str),
    /// Written for big-endian machines.
    #[error("the file is big-endian; convert the model again on (or for) a little-endian machine")]
    BigEndian,
    /// A version this reader does not know.
    #[error("GGUF version {0} is not supported (2 and 3 are); convert the model again")]
    Version(u32),
    /// The file ends too early.
    #[error("{what} needs {needs} bytes at offset {at}, but the file ends at {file_len}: it is cut short or damaged")]
    Truncated {
        /// The part that was being read.
        what: &'static str,
        /// Offset in the file.
        at: u64,
        /// Bytes it claims.
        needs: u64,
        /// Length of the file.
        file_len: u64,
    },
    /// Only a prefix of the file was given, and the header reaches beyond it.
    #[error("the header reaches at least to offset {until}, beyond the part that was read")]
    Incomplete {
        /// Read at least this many bytes and try again.
        until: u64,
    },
    /// A count beyond what the file could hold, or beyond this reader's limit.
    #[error("claims {claimed} {what}; there can be at most {most}")]
    TooMany {
        /// The counted items, in words.
        what: &'static str,
        /// As the file says.
        claimed: u64,
        /// As the file's size or this reader allows.
        most: u64,
    },
    /// A name that is not UTF-8.
    #[error("the name is not UTF-8")]
    NameNotUtf8,
    /// A name that is longer than the format allows.
    #[error("the name is {0} bytes long; the format allows 65535")]
    NameTooLong(u64),
    /// A name occurs twice.
    #[error("the name stands twice in the file")]
    Duplicate,
    /// A value type the format does not have.
    #[error("unknown value type {0}")]
    ValueType(u32),
    /// An array of arrays.
    #[error("an array of arrays, which no known key has")]
    NestedArray,
    /// A truth value that is neither 0 nor 1.
    #[error("a truth value of {0}")]
    Bool(u8),
    /// An alignment that is no power of two up to 1 MiB.
    #[error("alignment {0} is not a power of two between 1 and 1048576")]
    Alignment(u64),
    /// The alignment key holds something other than an unsigned integer.
    #[error("the alignment is a {0}, not an unsigned integer")]
    AlignmentType(ValueType),
    /// More than four dimensions.
    #[error("{0} dimensions; the format allows 4")]
    Rank(u32),
    /// A dimension of length zero.
    #[error("dimension {0} is zero")]
    ZeroDimension(usize),
    /// The number of elements or bytes does not fit in 64 bits.
    #[error("its size in elements or bytes does not fit in 64 bits")]
    SizeOverflow,
    /// A tensor type without a known layout.
    #[error(transparent)]
    TensorType(#[from] UnknownType),
    /// Rows that are no whole number of blocks.
    #[error("rows of {row} elements are no whole number of {kind} blocks of {block}")]
    PartialBlock {
        /// Its type.
        kind: TensorType,
        /// Elements in a row.
        row: u64,
        /// Elements in a block.
        block: u64,
    },
    /// An offset that is not aligned.
    #[error("its offset {offset} is no multiple of the alignment {alignment}")]
    Unaligned {
        /// From the start of the data.
        offset: u64,
        /// The alignment of this file.
        alignment: u64,
    },
    /// Bytes outside the file.
    #[error("its bytes {offset}+{size} of the data do not lie inside the file (which holds {data} bytes of data)")]
    OutsideFile {
        /// From the start of the data.
        offset: u64,
        /// Bytes it needs.
        size: u64,
        /// Bytes of data there are.
        data: u64,
    },
    /// Bytes shared with another tensor.
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
        /// The types that its reader can use.
        wanted: &'static str,
        /// The type that the file holds.
        found: String,
    },
    /// Its text is not UTF-8.
    #[error("GGUF metadata key `{0}` is not UTF-8 text")]
    NotUtf8(String),
}
