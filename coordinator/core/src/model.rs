//! A model as the scheduler knows it: its description, its size, and the options of a load.

use model_boss_protocol::{
    ByteCount, Category, DeviceId, KeepAlive, LlamaArgs, ModelId, Priority, Residency, ResidencyMode,
};
use serde::{Deserialize, Serialize};

/// A model as the scheduler needs to know it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelDescription {
    /// Its name.
    pub id: ModelId,
    /// Other names for it.
    pub aliases: Vec<ModelId>,
    /// Its category, which decides the routes that it serves.
    pub category: Category,
    /// Where it wants to run; `auto` lets the scheduler choose.
    pub device: DeviceId,
    /// The memory it will need.
    pub size: SizeEstimate,
    /// Requests it works on at once.
    pub max_concurrent: u32,
    /// Never evicted, never unloaded for idleness.
    pub pin: bool,
    /// How long it stays after its last use, when the manifest says.
    pub keep_alive: Option<KeepAlive>,
    /// Changes when the manifest or the weights change.
    pub revision: u64,
    /// Devices that it needs for itself alone, besides the one it computes on (MM-5).
    pub exclusive_devices: Vec<DeviceId>,
    /// Whether its layers can be spread over several devices (RC-22).
    pub splittable: bool,
    /// The context it serves when a load asks for no other, in tokens.
    pub context_length: Option<u64>,
    /// Whether its layers may be streamed when a load does not say, and through how large a window (RS-11).
    pub residency: Residency,
    /// The options that its engine is started with when a load asks for nothing.
    #[serde(skip)]
    pub engine: EngineOptions,
    /// How often clients named it by its path; `None` for a model with a manifest. A model named by path is forgotten
    /// when it is not used.
    pub named: Option<u64>,
}

impl ModelDescription {
    /// The entry of a cloud provider in the catalog: it needs no memory and takes any number of requests.
    pub(crate) fn of_provider(name: &str) -> Self {
        Self {
            id: name.into(),
            aliases: Vec::new(),
            category: Category::Llm,
            device: DeviceId::Auto,
            size: SizeEstimate { bytes: ByteCount::ZERO, rule: SizeRule::Manifest, streamed: None },
            max_concurrent: u32::MAX,
            pin: false,
            keep_alive: None,
            revision: 0,
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
/// another load says otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadOptions {
    /// Where, in place of the manifest's device.
    pub device: Option<DeviceId>,
    /// The context to serve, in tokens.
    pub context: Option<u64>,
    /// Where its layers live.
    pub layers: LayerOptions,
    /// The memory it will need with that context and layers that live so.
    pub size: Option<SizeEstimate>,
    /// How long it stays after this load, if nobody uses it.
    pub keep_alive: Option<KeepAlive>,
    /// How important the load is; 2 when absent (MM-3).
    pub priority: Option<Priority>,
    /// Options of its engine beyond the manifest.
    pub engine: EngineOptions,
}

/// Options of a load for the model's layers, in place of the manifest's (RS-11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerOptions {
    /// Whether they stay, or come and go.
    pub mode: Option<ResidencyMode>,
    /// Blocks fetched ahead of the one in use.
    pub window: Option<u32>,
    /// Layers of a block.
    pub block: Option<u32>,
    /// The lease on the devices that compute.
    pub memory: Option<ByteCount>,
}

impl LayerOptions {
    /// Whether anything is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// These options, with those of `before` where these say nothing.
    #[must_use]
    pub fn over(self, before: Self) -> Self {
        Self {
            mode: self.mode.or(before.mode),
            window: self.window.or(before.window),
            block: self.block.or(before.block),
            memory: self.memory.or(before.memory),
        }
    }

    /// The manifest's residency with these options over it.
    pub fn residency(self, manifest: Residency) -> Residency {
        Residency {
            mode: self.mode.unwrap_or(manifest.mode),
            window: self.window.or(manifest.window),
            block: self.block.or(manifest.block),
            store: manifest.store,
        }
    }
}

/// Options of a load for the engine that runs the model (MM-11). The core does not interpret them: a load whose options
/// differ from those that a model runs with loads it again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// More arguments for llama-server.
    pub args: Option<LlamaArgs>,
    /// Which build of it.
    pub build: Option<String>,
}

impl EngineOptions {
    /// Whether an engine started with `self` is what `wanted` asks for, where both come on top of `usual`: what is not
    /// asked for never matters, and what comes to the same is the same, in whatever words (RC-29).
    pub(crate) fn satisfies(&self, wanted: &Self, usual: &Self) -> bool {
        let args = |options: &Self| LlamaArgs::settled([&usual.args, &options.args].into_iter().flatten());
        let build = |options: &Self| options.build.clone().or_else(|| usual.build.clone());
        (wanted.args.is_none() || args(self) == args(wanted))
            && (wanted.build.is_none() || build(self) == build(wanted))
    }

    /// Takes over what `wanted` asks for.
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
    /// Which model.
    pub model: ModelId,
    /// Which revision of it.
    pub revision: u64,
    /// The context that its load asked for; `None` is the manifest's.
    pub context: Option<u64>,
    /// Requests it took at once.
    pub max_concurrent: u32,
    /// Where; `auto` stands for a split over several devices.
    pub device: DeviceId,
    /// The bytes, in all.
    pub bytes: ByteCount,
}

/// The memory a model will need, and how we know (RC-20).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeEstimate {
    /// The bytes.
    pub bytes: ByteCount,
    /// Which rule gave them.
    pub rule: SizeRule,
    /// Its needs where its layers may be streamed (RS-11); none where they have to stay.
    #[serde(skip)]
    pub streamed: Option<Streaming>,
}

/// The memory a model needs whose layers come and go (RS-11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streaming {
    /// With all layers on the devices that compute.
    pub whole: ByteCount,
    /// The least there: what always stays, keys and values, a step's own values, and the window.
    pub least: ByteCount,
    /// Of the layers alone: more than this the host has not to hold for another device.
    pub layers: ByteCount,
    /// Of the host, where another device computes: the buffers that layers pass through on their way.
    pub ring: ByteCount,
}

/// The rules of RC-20 in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SizeRule {
    /// The manifest says.
    Manifest,
    /// Measured at an earlier load.
    Learned,
    /// Recorded when the source was found, and its files are not there to be read.
    Source,
    /// Computed from headers: weights, keys and values, activations, device context.
    Headers,
    /// From the file sizes.
    FileSize,
    /// Guessed from the name.
    Name,
    /// It does not fit, and its layers come and go through most of what the device can give (RS-11).
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
