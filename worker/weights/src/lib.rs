//! Where a model's tensors lie in its files, and their bytes.
//!
//! Owns: finding the weight files of a source, reading and checking their headers, the [`TensorIndex`], and stores that
//! give bytes ([`MappedWeights`]; [`store`] for streamed layers). Headers are input from strangers. Every number in
//! them is checked against the file before it is used or allocated by. Knows no candle, no device and no architecture.
//!
//! [`TensorIndex`] is for safetensors; GGUF, whose files also hold what a model is and how it reads text, has
//! [`gguf::GgufModel`].

mod ahead;
mod budget;
mod dtype;
mod error;
pub mod gguf;
pub mod layer_index;
mod limits;
mod locate;
mod safetensors;
mod small_file;
pub mod store;

pub use ahead::ASKED_AT_ONCE;
pub use budget::HeaderBudget;
pub use dtype::Dtype;
pub use error::{WeightsError, is_read_failure};
pub use locate::{gguf_file, model_folder};
pub use safetensors::{
    MappedWeights, OutlinedTensor, TensorEntry, TensorIndex, WeightFile, WeightFileId, outline_safetensors,
};
pub use small_file::{SmallFileError, read_small_file};
