//! A model in the scheduler: its description, its size, and the options of a load.

use model_boss_protocol::{
    ByteCount, Category, DeviceId, KeepAlive, KvCacheType, LlamaArgs, ModelId, Priority, Residency, ResidencyMode,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The description of a model for the scheduler.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelDescription {
    /// The name of the model.
    pub id: ModelId,
    /// Other names of the model.
    pub aliases: Vec<ModelId>,
    /// The category, which decides the routes that the model serves.
    pub category: Category,
    /// The device the model should run on; `auto` lets the scheduler choose.
    pub device: DeviceId,
    /// The memory the model will need.
    pub size: SizeEstimate,
    /// The number of concurrent requests.
    pub max_concurrent: u32,
    /// Whether its worker has bulk work wait for what is more important: bulk work then takes no place of that.
    #[serde(skip)]
    pub bulk_waits: bool,
    /// Whether the model is never evicted, nor unloaded for idleness.
    pub pin: bool,
    /// The time the model stays loaded after its last use, if the manifest sets it.
    pub keep_alive: Option<KeepAlive>,
    /// A number that changes when the manifest or the weights change.
    pub revision: u64,
    /// Devices that the model needs for itself alone, besides the one it computes on (MM-5).
    pub exclusive_devices: Vec<DeviceId>,
    /// Whether the model's layers can be spread over several devices (RC-22).
    pub splittable: bool,
    /// The context in tokens that the model serves unless a load names another.
    pub context_length: Option<u64>,
    /// Whether layers may be streamed unless a load decides it, and the size of the window (RS-11).
    pub residency: Residency,
    /// The options of the engine unless a load has its own.
    #[serde(skip)]
    pub engine: EngineOptions,
    /// The number of times that clients named the model by its path; `None` for a model with a manifest. A model named
    /// by path is forgotten if it is not used.
    pub named: Option<u64>,
}

impl ModelDescription {
    /// The entry of a cloud provider in the catalog: it needs no memory and takes any number of requests.
    pub(crate) fn of_provider(name: &str) -> Self {
        Self { max_concurrent: u32::MAX, revision: 0, ..Self::plain(name, ByteCount::ZERO) }
    }

    /// A chat model that needs this memory on any device and takes one request at a time.
    pub fn plain(id: impl Into<ModelId>, bytes: ByteCount) -> Self {
        Self {
            id: id.into(),
            aliases: Vec::new(),
            category: Category::Llm,
            device: DeviceId::Auto,
            size: SizeEstimate { bytes, rule: SizeRule::Manifest, streamed: None },
            max_concurrent: 1,
            bulk_waits: false,
            pin: false,
            keep_alive: None,
            revision: 1,
            exclusive_devices: Vec::new(),
            splittable: false,
            context_length: None,
            residency: Residency::default(),
            engine: EngineOptions::default(),
            named: None,
        }
    }
}

/// Options of an operator's load beyond the manifest. They hold until the model is unloaded, its manifest changes, or
/// another load changes them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadOptions {
    /// The device, in place of the manifest's.
    pub device: Option<DeviceId>,
    /// The context to serve, in tokens.
    pub context: Option<u64>,
    /// The residency of the model's layers.
    pub layers: LayerOptions,
    /// The estimated memory with that context and residency.
    pub size: Option<SizeEstimate>,
    /// The time the model stays loaded after this load if it is not used.
    pub keep_alive: Option<KeepAlive>,
    /// The priority of the load; 2 when absent (MM-3).
    pub priority: Option<Priority>,
    /// Options of the model's engine beyond the manifest.
    pub engine: EngineOptions,
}

/// Options of a load for the model's layers and their keys and values, in place of the manifest's (RS-11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerOptions {
    /// Whether layers stay on their devices or are streamed.
    pub mode: Option<ResidencyMode>,
    /// The look-ahead: blocks fetched before the one in use.
    pub window: Option<u32>,
    /// The number of layers in a block.
    pub block: Option<u32>,
    /// The lease on the devices that compute.
    pub memory: Option<ByteCount>,
    /// The type of keys and values.
    pub kv_cache_type: Option<KvCacheType>,
}

impl LayerOptions {
    /// Whether no option is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// These options, completed with those of `before`.
    #[must_use]
    pub fn over(self, before: Self) -> Self {
        Self {
            mode: self.mode.or(before.mode),
            window: self.window.or(before.window),
            block: self.block.or(before.block),
            memory: self.memory.or(before.memory),
            kv_cache_type: self.kv_cache_type.or(before.kv_cache_type),
        }
    }

    /// The manifest's residency, overridden by these options.
    pub fn residency(self, manifest: Residency) -> Residency {
        Residency {
            mode: self.mode.unwrap_or(manifest.mode),
            window: self.window.or(manifest.window),
            block: self.block.or(manifest.block),
            store: manifest.store,
            kv_cache_type: self.kv_cache_type.unwrap_or(manifest.kv_cache_type),
        }
    }
}

/// Options of a load for the engine that runs the model (MM-11). The core does not interpret them: a load whose options
/// differ from those that a model runs with loads it again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// Additional arguments for llama-server.
    pub args: Option<LlamaArgs>,
    /// The build of llama-server to run.
    pub build: Option<String>,
}

impl EngineOptions {
    /// Whether an engine started with `self` meets the options in `wanted`, where both override `usual` (RC-29).
    /// Options that `wanted` does not set are ignored, and different spellings of the same value are equal.
    pub(crate) fn satisfies(&self, wanted: &Self, usual: &Self) -> bool {
        let args = |options: &Self| LlamaArgs::settled([&usual.args, &options.args].into_iter().flatten());
        let build = |options: &Self| options.build.clone().or_else(|| usual.build.clone());
        (wanted.args.is_none() || args(self) == args(wanted))
            && (wanted.build.is_none() || build(self) == build(wanted))
    }

    /// Adopts the options that `wanted` sets.
    pub(crate) fn adopt(&mut self, wanted: &Self) {
        if wanted.args.is_some() {
            self.args.clone_from(&wanted.args);
        }
        if wanted.build.is_some() {
            self.build.clone_from(&wanted.build);
        }
    }
}

/// The memory that a model was seen to use (RC-20).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Footprint {
    /// The measured model.
    pub model: ModelId,
    /// The model's revision.
    pub revision: u64,
    /// The context that the model's load named; `None` is the manifest's.
    pub context: Option<u64>,
    /// The number of concurrent requests the model was loaded for.
    pub max_concurrent: u32,
    /// The type of its keys and values.
    #[serde(default, skip_serializing_if = "KvCacheType::is_auto")]
    pub kv_cache_type: KvCacheType,
    /// The device; `auto` for a split over several devices.
    pub device: DeviceId,
    /// The sum of bytes on the model's devices.
    pub bytes: ByteCount,
}

/// The memory that a model will need, and the rule that gave it (RC-20).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeEstimate {
    /// The estimated bytes.
    pub bytes: ByteCount,
    /// The rule that gave the size.
    pub rule: SizeRule,
    /// The memory that the model needs when streamed (RS-11); `None` if all layers have to stay.
    #[serde(skip)]
    pub streamed: Option<Streaming>,
}

/// The memory needs of a streamed model (RS-11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streaming {
    /// The bytes with all layers on the devices that compute.
    pub whole: ByteCount,
    /// The minimum on those devices: resident tensors, keys and values, a step's own values, and the window.
    pub least: ByteCount,
    /// The bytes of the layers alone: the most that the host holds of them for another device.
    pub layers: ByteCount,
    /// The host's buffers that layers pass through, where another device computes.
    pub ring: ByteCount,
}

/// The rules of RC-20 in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SizeRule {
    /// The manifest has the size.
    Manifest,
    /// The size was measured at an earlier load.
    Learned,
    /// The size was recorded when the source was found, for files that are not on this machine.
    Source,
    /// The size is computed from headers: weights, keys and values, activations, device context.
    Headers,
    /// The size is estimated from the file sizes.
    FileSize,
    /// The size is guessed from the model's name.
    Name,
    /// The model does not fit and is streamed; it gets most of what the device can give (RS-11).
    Streamed,
}

impl std::fmt::Display for SizeRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Manifest => "manifest",
            Self::Learned => "learned",
            Self::Source => "source",
            Self::Headers => "headers",
            Self::FileSize => "file size",
            Self::Name => "name",
            Self::Streamed => "streamed",
        })
    }
}
