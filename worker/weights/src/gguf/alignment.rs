//! On which bytes tensors begin in a GGUF file.

/// Where tensors begin when a file does not say otherwise: multiples of this many bytes.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// The key that sets another alignment.
pub const ALIGNMENT_KEY: &str = "general.alignment";
