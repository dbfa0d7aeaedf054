//! The places of a model's tensors in its files, and their bytes.
//!
//! The crate finds the weight files of a source and checks their headers. It has the [`TensorIndex`], and stores that
//! deliver bytes ([`MappedWeights`]; [`store`] for streamed layers). Headers are untrusted input. Every number in them
//! is checked against the file before it is used or allocated by. The crate does not depend on candle, devices or
//! architectures.
//!
//! [`TensorIndex`] is for safetensors. GGUF files also describe the model and its tokenizer; [`gguf::GgufModel`] is for
//! those.

mod ahead;
mod budget;
mod dtype;
mod error;
pub mod gguf;
pub mod layer_index;
mod limits;
mod locate;
mod part_name;
pub mod quantised;
mod safetensors;
mod small_file;
pub mod store;
mod towers_folder;

pub use ahead::ASKED_AT_ONCE;
pub use budget::HeaderBudget;
pub use dtype::Dtype;
pub use error::{WeightsError, is_read_failure};
pub use locate::{gguf_file, model_folder};
pub use part_name::PartName;
pub use safetensors::{
    MappedWeights, OutlinedTensor, TensorEntry, TensorIndex, WeightFile, WeightFileId, outline_safetensors,
};
pub use small_file::{SmallFileError, read_small_file};
pub use towers_folder::{LAYER_SETTINGS, layers_folder, towers_folder};
