//! Streaming to NVIDIA GPUs in a build without them.

use crate::error::ModelError;
use crate::read::reader::Reader;
use crate::streamed::request::{Asked, Opened};

pub(crate) fn stream(_asked: &Asked<'_>, _reader: &mut Reader<'_>) -> Result<Opened, ModelError> {
    Err(ModelError::NoStreaming)
}
