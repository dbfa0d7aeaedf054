//! The way to stream that fits a device.

use super::request::{Asked, Opened};
use super::{cpu, cuda};
use crate::error::ModelError;
use crate::read::reader::Reader;

/// The layers of one device, of which some are streamed. What of the ends is on the device has been read.
pub(crate) fn open(asked: &Asked<'_>, reader: &mut Reader<'_>) -> Result<Opened, ModelError> {
    if asked.part.place.target.device.is_cpu() { cpu::open(asked, reader) } else { cuda::stream(asked, reader) }
}
