//! NVIDIA GPUs: opening one, its memory, the meaning of its errors. Only this folder and the one of that name in
//! [`crate::streamed`] name CUDA. Without the feature `cuda`, stubs of the same names report that.

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
