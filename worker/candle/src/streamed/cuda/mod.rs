//! Streaming to NVIDIA GPUs: copies during the computation, and memory for them. Without the feature `cuda`, a stub
//! with the same name reports its absence.

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod driver;
#[cfg(feature = "cuda")]
mod fault;
#[cfg(feature = "cuda")]
mod memory;

#[cfg(not(feature = "cuda"))]
pub(crate) use absent::stream;
#[cfg(feature = "cuda")]
pub(crate) use driver::stream;
