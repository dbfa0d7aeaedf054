//! Streamed layers: each is read from a store, placed on its device, used, and dropped for the next.

mod arranged;
mod block;
mod cpu;
mod cuda;
#[cfg(any(test, feature = "cuda"))]
mod device_copy;
mod experts;
pub(crate) mod index;
mod layers;
mod measure;
pub(crate) mod open;
mod planned;
pub(crate) mod request;
mod store_source;
mod table;
