//! NVIDIA GPUs: opening one, its memory, what its errors mean. With [`crate::streamed`]'s folder of that name the only
//! one that names CUDA; without the feature `cuda` the stand-in of the same names says so. Knows no model.

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod failure;
#[cfg(feature = "cuda")]
mod pool;

#[cfg(not(feature = "cuda"))]
pub(crate) use absent::{failure, free_memory, hand_on, has_bf16, open, trim};
#[cfg(feature = "cuda")]
pub(crate) use {
    device::{free_memory, hand_on, has_bf16, open},
    failure::failure,
    pool::trim,
};
