//! The places of a model's tensors in its files, and their bytes.

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
