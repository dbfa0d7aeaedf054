//! GGUF files: reading and writing headers, and the layout of every block type. The meaning of keys for models and
//! tokenizers belongs to other modules.
//!
//! The format is ggml's, little endian throughout. A file has the magic `GGUF`, the version (2 or 3), tensor count and
//! key count, and the keys with typed values. Then follow one record per tensor (name, dimensions, type, offset),
//! padding, and the tensors' bytes. A file is untrusted: no memory is allocated, sliced or computed with before it has
//! been checked against the bytes that exist. Large values (a vocabulary of 150,000 strings) are borrowed, not copied.

mod alignment;
mod blocks;
mod cursor;
mod error;
mod file;
mod header;
mod model;
mod outline;
mod tensor;
mod tensor_type;
mod value;
mod value_type;
mod writer;

pub use alignment::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT};
pub use blocks::{BlockError, IQ4_NL_VALUES, dequantise, power_of_two, quantise_q8_0};
pub use error::{HeaderError, HeaderFault, HeaderPlace, KeyError};
pub use file::{FileError, GgufFile};
pub use header::Header;
pub use model::{GgufModel, GgufModelError, StoredTensor};
pub use outline::{Fact, Outline, OutlineError};
pub use tensor::TensorInfo;
pub use tensor_type::{F8_BLOCK, F8_FACTOR, TensorType, UnknownType};
pub use value::{Array, FromValue, Strings, Value};
pub use value_type::ValueType;
pub use writer::{HeaderWriter, TensorBody, ToValue, WriteError};

#[cfg(test)]
mod tests;
