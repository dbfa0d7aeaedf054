//! The facts of a load, and the start of its engine as data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model_boss_protocol::{ByteCount, Category, DeviceId, KvCacheType, ModelId, SpawnToken};
use serde::{Deserialize, Serialize};

/// The facts of a load that command lines are made of.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The model's id, which the engine should use as its name.
    pub model: &'a ModelId,
    /// The model's category.
    pub category: Category,
    /// The path of the model's files: one file, or a folder.
    pub source: &'a Path,
    /// The bytes on each device. The list is never empty, and `auto` is never among the devices.
    pub parts: &'a [(DeviceId, ByteCount)],
    /// The UUIDs of the model's GPUs, separated by commas; empty on `cpu`.
    pub gpus: &'a str,
    /// The port to listen on, on 127.0.0.1.
    pub port: u16,
    /// The key that requests will carry.
    pub token: &'a SpawnToken,
    /// The context of one sequence, in tokens, if it was set.
    pub context: Option<u64>,
    /// The number of concurrent requests.
    pub max_concurrent: u32,
    /// The type of keys and values.
    pub kv_cache_type: KvCacheType,
}

/// A program to start, as the start line of its guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// A path, or a name to search for on PATH.
    pub program: PathBuf,
    /// The arguments of the program.
    pub args: Vec<String>,
    /// Environment variables beyond those that every program of a model inherits.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The working directory.
    #[serde(default)]
    pub folder: Option<PathBuf>,
}

/// The reason why a load cannot become a command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// The template needs a context, and none was set.
    #[error("its command line wants {{ctx}}: set context_length in the manifest, or --ctx-size")]
    NoContext,
    /// The template is invalid.
    #[error(transparent)]
    Template(#[from] model_boss_protocol::CommandTemplateError),
    /// A path is not valid text.
    #[error("the path of its files is not UTF-8: {0}")]
    Path(PathBuf),
    /// The model has no suitable file.
    #[error(transparent)]
    Files(#[from] crate::NoLlamaFiles),
}

impl Facts<'_> {
    /// The number of the model's GPUs.
    pub(crate) fn gpu_count(&self) -> usize {
        self.parts.iter().filter(|(device, _)| matches!(device, DeviceId::Cuda(_))).count()
    }

    /// The share of each device in MiB, separated by commas.
    pub(crate) fn tensor_split(&self) -> String {
        let shares: Vec<String> = self.parts.iter().map(|(_, bytes)| (bytes.0 >> 20).max(1).to_string()).collect();
        shares.join(",")
    }

    pub(crate) fn memory(&self) -> ByteCount {
        self.parts.iter().map(|(_, bytes)| *bytes).sum()
    }
}

/// A path as an argument; fails if it is not valid text.
pub(crate) fn text(path: &Path) -> Result<String, LaunchError> {
    path.to_str().map(str::to_owned).ok_or_else(|| LaunchError::Path(path.to_owned()))
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    pub(crate) struct Load {
        pub(crate) model: ModelId,
        pub(crate) category: Category,
        pub(crate) source: PathBuf,
        pub(crate) parts: Vec<(DeviceId, ByteCount)>,
        pub(crate) gpus: String,
        pub(crate) token: SpawnToken,
        pub(crate) context: Option<u64>,
        pub(crate) kv_cache_type: KvCacheType,
    }

    impl Load {
        pub(crate) fn on_cpu() -> Self {
            Self {
                model: "team/m".into(),
                category: Category::Llm,
                source: "/models/m.gguf".into(),
                parts: vec![(DeviceId::Cpu, ByteCount::gib(1))],
                gpus: String::new(),
                token: SpawnToken::from_bits(7),
                context: Some(2_048),
                kv_cache_type: KvCacheType::Auto,
            }
        }

        pub(crate) fn on_gpus(shares: &[u64]) -> Self {
            let devices = (0..).map(DeviceId::Cuda);
            let parts = devices.zip(shares.iter().map(|gib| ByteCount::gib(*gib))).collect();
            let gpus = (0..shares.len()).map(|n| format!("GPU-{n}")).collect::<Vec<_>>().join(",");
            Self { parts, gpus, ..Self::on_cpu() }
        }

        pub(crate) fn facts(&self) -> Facts<'_> {
            Facts {
                model: &self.model,
                category: self.category,
                source: &self.source,
                parts: &self.parts,
                gpus: &self.gpus,
                port: 8300,
                token: &self.token,
                context: self.context,
                max_concurrent: 4,
                kv_cache_type: self.kv_cache_type,
            }
        }
    }
}
