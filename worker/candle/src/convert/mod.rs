//! Writing models as GGUF: converted from other files, and synthetic ones with random weights.

mod conversion;
mod gguf_keys;
mod random;
pub(crate) mod synthetic;
mod synthetic_experts;

pub use conversion::{Conversion, ConvertError, MatrixType};
pub use gguf_keys::GgufKeysError;
pub use synthetic::Synthetic;
