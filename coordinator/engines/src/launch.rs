//! What is known of a load when its engine is started, and the start itself as data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model_boss_protocol::{ByteCount, Category, DeviceId, ModelId, SpawnToken};
use serde::{Deserialize, Serialize};

/// What is known of a load.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The model's id, by which the engine shall know it.
    pub model: &'a ModelId,
    /// What it does.
    pub category: Category,
    /// Its files: one, or a folder.
    pub source: &'a Path,
    /// Where, and how much on each device. Never `auto`, never empty.
    pub parts: &'a [(DeviceId, ByteCount)],
    /// The UUIDs of its GPUs with commas between them; empty on `cpu`.
    pub gpus: &'a str,
    /// Where to listen, on 127.0.0.1.
    pub port: u16,
    /// The key that requests will bring.
    pub token: &'a SpawnToken,
    /// The context of one sequence, in tokens, when anybody says.
    pub context: Option<u64>,
    /// Requests to work on at once.
    pub max_concurrent: u32,
}

/// A program to start: the start line of its guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// A path, or a name to look for on PATH.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables over those that every program of a model inherits.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Where it runs.
    #[serde(default)]
    pub folder: Option<PathBuf>,
}

/// A load that cannot be put into a command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// The template asks for what nobody said.
    #[error("its command line wants {{ctx}}: set context_length in the manifest, or --ctx-size")]
    NoContext,
    /// The template itself.
    #[error(transparent)]
    Template(#[from] model_boss_protocol::CommandTemplateError),
    /// A path that is no text.
    #[error("the path of its files is not UTF-8: {0}")]
    Path(PathBuf),
    /// No file for it.
    #[error(transparent)]
    Files(#[from] crate::NoLlamaFiles),
}

impl Facts<'_> {
    /// How many GPUs it has.
    pub(crate) fn gpu_count(&self) -> usize {
        self.parts.iter().filter(|(device, _)| matches!(device, DeviceId::Cuda(_))).count()
    }

    /// The share of each device in MiB, with commas between them.
    pub(crate) fn tensor_split(&self) -> String {
        let shares: Vec<String> = self.parts.iter().map(|(_, bytes)| (bytes.0 >> 20).max(1).to_string()).collect();
        shares.join(",")
    }

    pub(crate) fn memory(&self) -> ByteCount {
        self.parts.iter().map(|(_, bytes)| *bytes).sum()
    }
}

/// A path as an argument.
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
            }
        }
    }
}
