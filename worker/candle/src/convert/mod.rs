//! Writing models as GGUF: from other files, and made up.

mod conversion;
mod gguf_keys;
pub(crate) mod synthetic;

pub use conversion::{Conversion, ConvertError, MatrixType};
pub use gguf_keys::GgufKeysError;
pub use synthetic::Synthetic;
