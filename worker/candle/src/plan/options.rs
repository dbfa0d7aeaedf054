//! Options of a load that an operator can set. Knows names and bytes, no model.

use model_boss_engine::residency::plan::ResidencyOptions;
use model_boss_protocol::{ByteCount, DeviceId};
use model_boss_weights::store::WeightStoreChoice;

/// Options of a load.
#[derive(Clone, Debug, Default)]
pub struct DecoderLoadOptions {
    /// The longest sequence wanted, in tokens.
    pub context_length: Option<u64>,
    /// Sequences at once: room for their keys and values is kept when layers are streamed. One when absent.
    pub max_concurrent: Option<u32>,
    /// Bytes it may take on the device in all; the free ones when absent. For [`crate::load_with`]: with several
    /// devices each has a limit of its own.
    pub memory: Option<ByteCount>,
    /// Bytes of host memory that streaming to another device may take. They hold the buffers that layers are read into,
    /// and layers that are not read from disk again. Buffers alone when absent.
    pub host_memory: Option<ByteCount>,
    /// Whether layers are resident or streamed, and through how large a window.
    pub residency: ResidencyOptions,
    /// The store that streamed layers are read from.
    pub store: WeightStoreChoice,
}

/// A device of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// The device to compute on.
    pub device: DeviceId,
    /// Its weight among several: layers are split in proportion. The bytes that are free when absent.
    pub share: Option<ByteCount>,
    /// The most bytes it may take on the device; all free bytes when absent.
    pub limit: Option<ByteCount>,
}
