//! GGUF files: reads and writes headers, knows the layout of every block type. Knows nothing of models or tokenizers:
//! what a key means is its reader's matter.
//!
//! The format is ggml's: little endian throughout; magic `GGUF`, version (2 or 3), tensor count, key count, the keys
//! with typed values, one record per tensor (name, dimensions, type, offset), padding, and the tensors' bytes.
//! A file is a stranger's word: nothing is allocated, sliced or multiplied before it has been checked against the bytes
//! that are really there. Large values (a vocabulary of 150,000 strings) are borrowed, not copied.

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
mod writer;

pub use blocks::{BlockError, dequantise, quantise_q8_0};
pub use error::{Fault, HeaderError, KeyError, Place};
pub use file::{FileError, GgufFile};
pub use header::Header;
pub(crate) use model::split_name;
pub use model::{GgufModel, GgufModelError, StoredTensor};
pub use outline::{Fact, Outline, OutlineError};
pub use tensor::TensorInfo;
pub use tensor_type::{TensorType, UnknownType};
pub use value::{Array, FromValue, Strings, Value, ValueType};
pub use writer::{Body, HeaderWriter, ToValue, WriteError};

/// Where tensors begin when a file does not say otherwise: multiples of this many bytes.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// The key that sets another alignment.
pub const ALIGNMENT_KEY: &str = "general.alignment";

#[cfg(test)]
mod tests;
