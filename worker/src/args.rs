//! Arguments that are more than one command's: of a model that is loaded, and of model files that are written.

use std::path::PathBuf;

use clap::ValueEnum;
use model_boss_protocol::{ByteCount, DeviceId, KvCacheType, Residency, ResidencyMode, SandboxMode, StoreKind};

#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// A GGUF file, a model's folder, a weight file in it, or a manifest (*.toml). Holds no lease: for debugging only
    pub(crate) model: Option<PathBuf>,
    /// Where to listen on 127.0.0.1; 0 takes a free port and says which
    #[arg(long, default_value_t = 0, requires = "model")]
    pub(crate) port: u16,
    /// Where to run: cpu, cuda:0, metal:0; several share the layers: cuda:0,cuda:1 [default: the manifest's, or cpu]
    #[arg(long, requires = "model", value_delimiter = ',')]
    pub(crate) device: Vec<DeviceId>,
    /// Longest prompt plus answer, in tokens [default: the model's own limit]
    #[arg(long, requires = "model", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) context_length: Option<u64>,
    /// Requests worked on at once [default: 8]
    #[arg(long, requires = "model", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_concurrent: Option<u32>,
    /// auto, off, required: whether the process confines itself to the model's files (docs/sandbox.md)
    #[arg(long, requires = "model", default_value_t)]
    pub(crate) sandbox: SandboxMode,
    #[command(flatten)]
    pub(crate) layers: LayerFlags,
}

/// Where layers live, and how their keys and values are kept.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct LayerFlags {
    /// auto, resident, stream: whether layers stay on the device, or those that do not fit are read in each step
    /// [default: the manifest's, or auto]
    #[arg(long, requires = "model")]
    pub(crate) residency: Option<ResidencyMode>,
    /// Blocks of layers fetched ahead of the one in use [default: what measures best]
    #[arg(long, requires = "model", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) window: Option<u32>,
    /// Layers of a block [default: 1 to 4, by what is measured at load]
    #[arg(long, requires = "model", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) block: Option<u32>,
    /// Memory it may take on each device, e.g. 2GiB, or 8GiB,4GiB for two [default: what is free, of one device]
    #[arg(long, requires = "model", value_delimiter = ',')]
    pub(crate) memory: Vec<ByteCount>,
    /// Host memory for streaming to a GPU. It holds the buffers that layers are read into, and layers that are then
    /// not read from disk each time [default: two buffers]
    #[arg(long, requires = "model")]
    pub(crate) host_memory: Option<ByteCount>,
    /// auto, direct, map, memory: how layers that come are read [default: the manifest's, or past the page cache if the
    /// file system can]
    #[arg(long, requires = "model")]
    pub(crate) store: Option<StoreKind>,
    /// auto, f32, f16, bf16, q8_0: how keys and values are kept [default: the manifest's, or auto: f32 for models
    /// stored in f32, else f16 on the CPU, and what the model computes in on a GPU]
    #[arg(long, requires = "model")]
    pub(crate) kv_cache_type: Option<KvCacheType>,
}

impl LayerFlags {
    /// The command line goes before the manifest.
    pub(crate) fn over(&self, manifest: Residency) -> Residency {
        Residency {
            mode: self.residency.unwrap_or(manifest.mode),
            window: self.window.or(manifest.window),
            block: self.block.or(manifest.block),
            store: self.store.or(manifest.store),
            kv_cache_type: self.kv_cache_type.unwrap_or(manifest.kv_cache_type),
        }
    }
}

/// `convert`'s command line.
#[derive(Debug, clap::Args)]
pub struct Convert {
    /// A model's folder: config.json, tokenizer.json, *.safetensors
    pub folder: PathBuf,
    /// The file to write
    #[arg(value_name = "OUT.gguf")]
    pub out: PathBuf,
    /// How matrices are stored
    #[arg(long = "type", value_enum, default_value_t = StoredType::Q8_0)]
    pub stored_as: StoredType,
}

/// How matrices are stored in a file that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoredType {
    /// 16 bits
    F16,
    /// 16 bits with the range of 32
    Bf16,
    /// 8 bits: half the size, nearly the same answers
    #[value(name = "q8_0")]
    Q8_0,
}

/// `index`'s command line.
#[derive(Debug, clap::Args)]
pub struct Index {
    /// A GGUF file, or a folder with a model. MODEL.layers.json and MODEL.layers.bin appear beside the (first) weight
    /// file
    pub model: PathBuf,
    /// In which order the bytes of each matrix are written
    #[arg(long, value_enum, default_value_t)]
    pub order: LayerOrder,
}

/// In which order the bytes of a matrix stand in an index of layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LayerOrder {
    /// As this machine's CPU computes with them: nothing is left to arrange in a step
    #[default]
    Machine,
    /// As the model has them: what GPUs copy, and any machine reads
    Rows,
}

/// `synth`'s command line.
#[derive(Debug, clap::Args)]
pub struct Synth {
    /// qwen3-0.6b (373 MiB), qwen3-4b, qwen3-small (41 MiB) or qwen3-tiny, stored as Q4_K_M, or in the type behind the
    /// name: qwen3-0.6b-q8_0, qwen3-tiny-iq4_xs
    pub shape: String,
    /// The file to write
    #[arg(value_name = "OUT.gguf")]
    pub out: PathBuf,
    /// Decides the weights
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}
