//! The choice of the kind of streaming for a device.

use super::request::{StreamRequest, StreamedPart};
use super::{cpu, cuda};
use crate::error::ModelError;
use crate::read::reader::WeightReader;

/// Opens the layers of one device, some of which are streamed. The weights before and after them have been read.
pub(crate) fn open(asked: &StreamRequest<'_>, reader: &mut WeightReader<'_>) -> Result<StreamedPart, ModelError> {
    if asked.part.place.target.device.is_cpu() { cpu::open(asked, reader) } else { cuda::stream(asked, reader) }
}
