//! Quantised matrices of safetensors files, as the makers of such files pack them: GPTQ, AWQ, compressed-tensors with
//! integers, and FP8 with scales.
//!
//! `config.json` or a file beside it says how a model is quantised ([`QuantisedFormat`]). [`IntegerMatrix`] and
//! [`Fp8Matrix`] find the tensors of one matrix, check them, and write its rows as the blocks that products read:
//! integers as those of GGUF, FP8 with its scales between. [`QuantisedModel`] does so for all matrices of a model.
//!
//! The formats' sources: GPTQ's is AutoGPTQ (`qlinear_cuda.py`), AWQ's is AutoAWQ (`packing_utils.py`), and the third
//! is the package `compressed-tensors`.

mod beside;
mod error;
mod format;
mod fp8;
mod integers;
mod model;
mod store;
mod stored;

pub use beside::{DescriptionError, add_description};
pub use error::QuantisedError;
pub use format::{FormatError, GptqZeros, IntegerBits, QuantisedFormat};
pub use fp8::Fp8Matrix;
pub use integers::IntegerMatrix;
pub use model::{QuantisedMatrix, QuantisedModel, bytes_in_blocks};
pub use store::{BLOCKS_FILE, QuantisedStore};
pub use stored::{PackedTensor, TensorSource};
