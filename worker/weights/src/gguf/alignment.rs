//! The alignment of tensors in a GGUF file.

/// The default alignment in bytes: tensors begin at multiples of it unless the file has another.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// The metadata key that sets another alignment.
pub const ALIGNMENT_KEY: &str = "general.alignment";
