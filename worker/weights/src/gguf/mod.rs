//! GGUF files: reads and writes headers, and knows the layout of every block type. The meaning of keys for models and
//! tokenizers belongs to other modules.

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
pub use blocks::{BlockError, dequantise, quantise_q8_0};
pub use error::{HeaderError, HeaderFault, HeaderPlace, KeyError};
pub use file::{FileError, GgufFile};
pub use header::Header;
pub(crate) use model::split_name;
pub use model::{GgufModel, GgufModelError, StoredTensor};
pub use outline::{Fact, Outline, OutlineError};
pub use tensor::TensorInfo;
pub use tensor_type::{TensorType, UnknownType};
pub use value::{Array, FromValue, Strings, Value};
pub use value_type::ValueType;
pub use writer::{HeaderWriter, TensorBody, ToValue, WriteError};

#[cfg(test)]
mod tests;
