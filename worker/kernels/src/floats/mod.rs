//! Matrices of floats on the CPU, multiplied in their stored form: f32, f16, bf16 and FP8.
//!
//! An f16 takes half the memory of an f32, and half the bytes to read for each token. Elements become f32 in registers,
//! or, for many rows of activations, in a few rows at a time that stay in the cache. Products of 16-bit floats equal
//! those of the same numbers as f32, to the bit.

pub(crate) mod kinds;
pub(crate) mod matrix;
mod outs;
mod packed;
pub(crate) mod product;
mod rows;
mod strips;
mod sums;
#[cfg(test)]
mod tests;
