//! Safetensors: headers, checked before anything is trusted, and the index of a model's tensors over one file or
//! several.

mod header;
mod index;
mod json;
mod mapped;
mod open;
mod outline;
mod shards;

pub use index::{TensorEntry, TensorIndex, WeightFile, WeightFileId};
pub use mapped::MappedWeights;
pub use outline::{OutlinedTensor, outline_safetensors};
