//! Streaming on the CPU: the disk writes into the buffers that products read from.

mod device;
mod open;

pub(crate) use open::open;
