//! Limits on the header of a weight file, which is untrusted: a number in it must not decide how much memory is
//! allocated. The largest published checkpoints have 140,000 tensors over all files and 15 MB of names.

/// Bytes of a safetensors header.
pub(crate) const LONGEST_HEADER: u64 = 32 << 20;
/// Tensors of one file.
pub(crate) const MOST_TENSORS: usize = 1 << 18;
/// The most bytes of a tensor's name, as in GGUF.
pub(crate) const LONGEST_NAME: usize = u16::MAX as usize;
/// Dimensions of a tensor.
pub(crate) const MOST_DIMENSIONS: usize = 16;
/// The most bytes of the name of an element type.
pub(crate) const LONGEST_DTYPE: usize = 32;
/// The most bytes of the index of a model in several files.
pub(crate) const LONGEST_INDEX: u64 = 64 << 20;
/// The most tensors in all files of a model.
pub(crate) const MOST_INDEXED: usize = 1 << 19;
