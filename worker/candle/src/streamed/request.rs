//! A request to stream layers to a device, and the opened layers that result.

use model_boss_engine::residency::plan::MemoryNeeds;

use crate::decoder::stage::Stretch;
use crate::layers::kv;
use crate::plan::needs::{kept_tokens, workspace};
use crate::plan::options::DecoderLoadOptions;
use crate::plan::part::DevicePart;
use crate::read::reader::WeightReader;
use crate::spec::DecoderSpec;

/// The layers to be streamed, and their options.
pub(crate) struct StreamRequest<'a> {
    pub(crate) spec: &'a DecoderSpec,
    pub(crate) part: &'a DevicePart,
    pub(crate) options: &'a DecoderLoadOptions,
    /// Bytes that the reader had read before this device.
    pub(crate) before: u64,
    /// Bytes of host memory for streaming to another device; only buffers by default.
    #[cfg_attr(not(any(test, feature = "cuda")), allow(dead_code, reason = "this build streams to no other device"))]
    pub(crate) host_memory: Option<u64>,
}

/// The streamed layers of one device.
pub(crate) struct StreamedPart {
    pub(crate) stretch: Box<dyn Stretch>,
    /// Bytes of the slots, and of blocks that are held beside them in the device's memory.
    pub(crate) slot_bytes: u64,
    /// Bytes of host memory, if that is not the device's own.
    pub(crate) host_bytes: u64,
}

/// Memory that a device needs beside its layers, once the weights outside of layers have been read.
pub(super) fn needs_beside_layers(asked: &StreamRequest<'_>, reader: &WeightReader<'_>) -> MemoryNeeds {
    let StreamRequest { spec, part, options, before, .. } = *asked;
    let kv = kv::bytes_of_layers(spec, part.layers.clone(), &part.place.target, kept_tokens(spec, options));
    let sequences = options.max_concurrent.unwrap_or(1).max(1) as usize;
    MemoryNeeds {
        layers: Vec::new(),
        ends: reader.bytes() - before,
        kv: kv.saturating_mul(sequences) as u64,
        workspace: workspace(spec),
    }
}
