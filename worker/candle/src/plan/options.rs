//! Options of a load that an operator can set.

use model_boss_engine::residency::plan::ResidencyOptions;
use model_boss_protocol::{ByteCount, DeviceId, KvCacheType};
use model_boss_weights::store::WeightStoreChoice;

/// Options of a load.
#[derive(Clone, Debug, Default)]
pub struct DecoderLoadOptions {
    /// The longest sequence wanted, in tokens.
    pub context_length: Option<u64>,
    /// The number of simultaneous sequences. Keys and values take no more memory than all of them need, and no more
    /// than there is beside the weights. By default there is no limit, and streamed layers leave room for one
    /// sequence.
    pub max_concurrent: Option<u32>,
    /// The most bytes that the load may use on the device; all free bytes by default. This limit is for
    /// [`crate::load_with`]: with several devices each has a limit of its own.
    pub memory: Option<ByteCount>,
    /// Bytes of host memory for streaming to another device. They hold the buffers that layers are read into, and
    /// layers that are not read from disk again. By default there are only buffers.
    pub host_memory: Option<ByteCount>,
    /// Whether layers are resident or streamed, and the size of the window.
    pub residency: ResidencyOptions,
    /// The store that streamed layers are read from.
    pub store: WeightStoreChoice,
    /// The type that keys and values are kept in.
    pub kv_cache_type: KvCacheType,
}

/// The options of one device of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// The device to compute on.
    pub device: DeviceId,
    /// The device's weight among several: layers are split in proportion. The default is its free bytes.
    pub share: Option<ByteCount>,
    /// The most bytes that the load may use on the device; all free bytes by default.
    pub limit: Option<ByteCount>,
}
