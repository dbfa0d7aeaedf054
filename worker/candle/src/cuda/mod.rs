//! NVIDIA GPUs: opening one, its memory, copies beside computing, what its errors mean. The only folder that names CUDA; without the feature
//! `cuda` the stand-in of the same names says so. Knows no model.

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod driver;
#[cfg(feature = "cuda")]
mod failure;
#[cfg(feature = "cuda")]
mod memory;
#[cfg(feature = "cuda")]
mod pool;

#[cfg(not(feature = "cuda"))]
pub(crate) use absent::{failure, free_memory, hand_on, has_bf16, open, stream, trim};
#[cfg(feature = "cuda")]
pub(crate) use {
    device::{free_memory, hand_on, has_bf16, open},
    driver::stream,
    failure::failure,
    pool::trim,
};
