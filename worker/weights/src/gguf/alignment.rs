//! On which bytes tensors begin in a GGUF file.

/// The alignment of tensors when a file does not state another: they begin at multiples of this many bytes.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// The key that sets another alignment.
pub const ALIGNMENT_KEY: &str = "general.alignment";
