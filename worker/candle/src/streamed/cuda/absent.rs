//! The stub for streaming to NVIDIA GPUs in a build without CUDA.

use crate::error::ModelError;
use crate::read::reader::WeightReader;
use crate::streamed::request::{StreamRequest, StreamedPart};

pub(crate) fn stream(_asked: &StreamRequest<'_>, _reader: &mut WeightReader<'_>) -> Result<StreamedPart, ModelError> {
    Err(ModelError::NoStreaming)
}
