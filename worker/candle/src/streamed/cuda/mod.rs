//! Streaming to NVIDIA GPUs: copies during the computation, and memory for them. Without the feature `cuda`, the stub
//! of the same name reports that.

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
