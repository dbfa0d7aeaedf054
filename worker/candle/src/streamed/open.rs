//! The choice of the way to stream for a device.

use super::request::{StreamRequest, StreamedPart};
use super::{cpu, cuda};
use crate::error::ModelError;
use crate::read::reader::WeightReader;

/// The layers of one device, of which some are streamed. The weights before and behind them have been read.
pub(crate) fn open(asked: &StreamRequest<'_>, reader: &mut WeightReader<'_>) -> Result<StreamedPart, ModelError> {
    if asked.part.place.target.device.is_cpu() { cpu::open(asked, reader) } else { cuda::stream(asked, reader) }
}
