//! NVIDIA GPUs: opening one, its memory, the classes of its errors. Only this folder and the folder `cuda` in
//! [`crate::streamed`] name CUDA. Without the feature `cuda`, stubs with the same names report its absence.

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod arguments;
#[cfg(feature = "cuda")]
mod blocks;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod download;
#[cfg(feature = "cuda")]
mod failure;
#[cfg(feature = "cuda")]
mod graph;
#[cfg(feature = "cuda")]
pub(crate) mod kernels;
#[cfg(feature = "cuda")]
mod launch;
#[cfg(feature = "cuda")]
mod multiplied;
#[cfg(feature = "cuda")]
mod pinned;
#[cfg(feature = "cuda")]
mod pool;
#[cfg(feature = "cuda")]
mod products;
#[cfg(feature = "cuda")]
mod upload;

#[cfg(not(feature = "cuda"))]
#[path = "no_kernels.rs"]
pub(crate) mod kernels;

#[cfg(not(feature = "cuda"))]
pub(crate) use absent::{
    failure, free_memory, hand_on, has_bf16, open, overwrite, record, rehearse, trim, trim_recordings, upload,
    upload_bytes, with_numbers,
};
#[cfg(feature = "cuda")]
pub(crate) use {
    device::{free_memory, hand_on, has_bf16, open},
    download::with_numbers,
    failure::failure,
    graph::{overwrite, record, rehearse, trim_recordings},
    pinned::{NotPinned, pinned},
    pool::trim,
    upload::{upload, upload_bytes},
};
