//! Writes GGUF files (version 3), from the front to the end: first all names and sizes, then the tensors' bytes in the
//! same order. The writer holds the header in memory, never the data, and needs no seeking.

use std::collections::HashSet;
use std::io::{self, Write};

use super::alignment::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT};
use super::error::HeaderFault;
use super::tensor;
use super::tensor_type::TensorType;
use super::value::{Array, Value};
use super::value_type::ValueType;

const ZEROS: [u8; DEFAULT_ALIGNMENT as usize] = [0; DEFAULT_ALIGNMENT as usize];

/// Collects keys and tensors until the header can be written.
#[derive(Debug, Default)]
pub struct HeaderWriter {
    metadata: Vec<u8>,
    keys: HashSet<String>,
    records: Vec<u8>,
    tensors: Vec<(String, u64)>,
    names: HashSet<String>,
    data_len: u64,
}

impl HeaderWriter {
    /// A file without keys and tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key. The alignment cannot be set: files are written with the default.
    pub fn set(&mut self, key: &str, value: &(impl ToValue + ?Sized)) -> Result<(), WriteError> {
        check_name(key)?;
        if key == ALIGNMENT_KEY {
            return Err(WriteError::Alignment);
        }
        if !self.keys.insert(key.to_owned()) {
            return Err(WriteError::Duplicate(key.to_owned()));
        }
        put_string(&mut self.metadata, key.as_bytes());
        self.metadata.extend((value.kind() as u32).to_le_bytes());
        value.put(&mut self.metadata);
        Ok(())
    }

    /// Announces a tensor; its bytes follow in [`TensorBody`], in the order of these calls. The shape is row-major.
    pub fn tensor(&mut self, name: &str, kind: TensorType, shape: &[u64]) -> Result<(), WriteError> {
        check_name(name)?;
        let refuse = |fault| WriteError::Tensor { name: name.to_owned(), fault };
        if shape.len() > 4 {
            return Err(refuse(HeaderFault::Rank(u32::try_from(shape.len()).unwrap_or(u32::MAX))));
        }
        if let Some(index) = shape.iter().rev().position(|length| *length == 0) {
            return Err(refuse(HeaderFault::ZeroDimension(index)));
        }
        let bytes = tensor::size(kind, shape.last().copied().unwrap_or(1), shape).map_err(refuse)?;
        let end = self
            .data_len
            .checked_add(bytes)
            .and_then(|end| end.checked_next_multiple_of(DEFAULT_ALIGNMENT))
            .ok_or_else(|| refuse(HeaderFault::SizeOverflow))?;
        if !self.names.insert(name.to_owned()) {
            return Err(WriteError::Duplicate(name.to_owned()));
        }
        put_string(&mut self.records, name.as_bytes());
        self.records.extend((shape.len() as u32).to_le_bytes());
        for length in shape.iter().rev() {
            self.records.extend(length.to_le_bytes());
        }
        self.records.extend((kind as u32).to_le_bytes());
        self.records.extend(self.data_len.to_le_bytes());
        self.tensors.push((name.to_owned(), bytes));
        self.data_len = end;
        Ok(())
    }

    /// Writes the header; the tensors' bytes follow.
    pub fn begin<W: Write>(self, mut out: W) -> Result<TensorBody<W>, WriteError> {
        let mut front = Vec::with_capacity(24 + DEFAULT_ALIGNMENT as usize);
        front.extend(b"GGUF");
        front.extend(3_u32.to_le_bytes());
        front.extend((self.tensors.len() as u64).to_le_bytes());
        front.extend((self.keys.len() as u64).to_le_bytes());
        out.write_all(&front)?;
        out.write_all(&self.metadata)?;
        out.write_all(&self.records)?;
        let mut body = TensorBody { out, tensors: self.tensors.into_iter(), current: None };
        body.pad((front.len() + self.metadata.len() + self.records.len()) as u64)?;
        body.current = body.tensors.next().map(OpenTensor::from);
        Ok(body)
    }
}

/// The writer of the part after the header: it accepts the tensors' bytes in the announced order.
#[derive(Debug)]
pub struct TensorBody<W> {
    out: W,
    tensors: std::vec::IntoIter<(String, u64)>,
    current: Option<OpenTensor>,
}

#[derive(Debug)]
struct OpenTensor {
    name: String,
    bytes: u64,
    written: u64,
}

impl From<(String, u64)> for OpenTensor {
    fn from((name, bytes): (String, u64)) -> Self {
        Self { name, bytes, written: 0 }
    }
}

impl<W: Write> TensorBody<W> {
    /// The tensor whose bytes are due; `None` when all are written.
    pub fn due(&self) -> Option<&str> {
        self.current.as_ref().map(|current| current.name.as_str())
    }

    /// Writes the next piece of the due tensor. Pieces may have any size, but none reaches into the next tensor.
    pub fn write(&mut self, piece: &[u8]) -> Result<(), WriteError> {
        let Some(current) = &mut self.current else {
            return Err(WriteError::NoTensorDue);
        };
        let left = current.bytes - current.written;
        if piece.len() as u64 > left {
            let (name, excess) = (current.name.clone(), piece.len() as u64 - left);
            return Err(WriteError::TooLong { name, excess });
        }
        self.out.write_all(piece)?;
        current.written += piece.len() as u64;
        if current.written == current.bytes {
            let bytes = current.bytes;
            self.pad(bytes)?;
            self.current = self.tensors.next().map(OpenTensor::from);
        }
        Ok(())
    }

    /// Checks that every tensor is complete, flushes, and returns the output.
    pub fn finish(mut self) -> Result<W, WriteError> {
        if let Some(current) = self.current {
            return Err(WriteError::Incomplete { name: current.name, missing: current.bytes - current.written });
        }
        self.out.flush()?;
        Ok(self.out)
    }

    fn pad(&mut self, written: u64) -> io::Result<()> {
        let padding = written.next_multiple_of(DEFAULT_ALIGNMENT) - written;
        // The padding is shorter than the alignment, so the slice exists.
        self.out.write_all(ZEROS.get(..padding as usize).unwrap_or_default())
    }
}

/// A type that can be written as a metadata value.
pub trait ToValue {
    /// The GGUF type of the value.
    fn kind(&self) -> ValueType;
    /// Appends the value's bytes, without the type.
    fn put(&self, out: &mut Vec<u8>);
}

macro_rules! number_to_value {
    ($($number:ty: $kind:ident),*) => {$(
        impl ToValue for $number {
            fn kind(&self) -> ValueType {
                ValueType::$kind
            }

            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
        }
    )*};
}

number_to_value! { u8: U8, i8: I8, u16: U16, i16: I16, u32: U32, i32: I32, f32: F32, u64: U64, i64: I64, f64: F64 }

impl ToValue for bool {
    fn kind(&self) -> ValueType {
        ValueType::Bool
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl ToValue for str {
    fn kind(&self) -> ValueType {
        ValueType::String
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_string(out, self.as_bytes());
    }
}

impl ToValue for &str {
    fn kind(&self) -> ValueType {
        ValueType::String
    }

    fn put(&self, out: &mut Vec<u8>) {
        (**self).put(out);
    }
}

impl ToValue for String {
    fn kind(&self) -> ValueType {
        ValueType::String
    }

    fn put(&self, out: &mut Vec<u8>) {
        self.as_str().put(out);
    }
}

/// An array; an empty one is written as an array of `u8`.
impl<T: ToValue> ToValue for [T] {
    fn kind(&self) -> ValueType {
        ValueType::Array
    }

    fn put(&self, out: &mut Vec<u8>) {
        let kind = self.first().map_or(ValueType::U8, ToValue::kind);
        out.extend((kind as u32).to_le_bytes());
        out.extend((self.len() as u64).to_le_bytes());
        for element in self {
            element.put(out);
        }
    }
}

/// A value as another file has it.
impl ToValue for Value<'_> {
    fn kind(&self) -> ValueType {
        Value::kind(self)
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::U8(x) => x.put(out),
            Self::I8(x) => x.put(out),
            Self::U16(x) => x.put(out),
            Self::I16(x) => x.put(out),
            Self::U32(x) => x.put(out),
            Self::I32(x) => x.put(out),
            Self::F32(x) => x.put(out),
            Self::U64(x) => x.put(out),
            Self::I64(x) => x.put(out),
            Self::F64(x) => x.put(out),
            Self::Bool(x) => x.put(out),
            Self::String(text) => put_string(out, text),
            Self::Array(array) => put_array(out, array),
        }
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array<'_>) {
    out.extend((array.kind() as u32).to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    out.extend(array.bytes());
}

fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

fn check_name(name: &str) -> Result<(), WriteError> {
    if name.is_empty() || name.len() > usize::from(u16::MAX) { Err(WriteError::Name(name.len())) } else { Ok(()) }
}

/// The reason why a file could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A name of a length the format does not allow.
    #[error("a name of {0} bytes; the format allows 1 to 65535")]
    Name(usize),
    /// A name occurs twice.
    #[error("`{0}` was given twice")]
    Duplicate(String),
    /// An alignment of one's own.
    #[error("the alignment cannot be chosen: files are written with {DEFAULT_ALIGNMENT}")]
    Alignment,
    /// A tensor that cannot be in a file.
    #[error("tensor `{name}`: {fault}")]
    Tensor {
        /// The name of the tensor.
        name: String,
        /// The fault that was found.
        fault: HeaderFault,
    },
    /// More bytes were written than the tensor has.
    #[error("tensor `{name}` was given {excess} bytes too many")]
    TooLong {
        /// The name of the tensor.
        name: String,
        /// The number of bytes too many.
        excess: u64,
    },
    /// Bytes were written after the last tensor.
    #[error("bytes were given behind the last tensor")]
    NoTensorDue,
    /// The output was finished before all bytes were written.
    #[error("tensor `{name}` lacks {missing} bytes")]
    Incomplete {
        /// The first incomplete tensor.
        name: String,
        /// The number of missing bytes.
        missing: u64,
    },
    /// The output failed.
    #[error("cannot write the file: {0}")]
    Io(#[from] io::Error),
}
