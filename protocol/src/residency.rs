//! The residency of a model's layers, as an operator sets it.

use serde::{Deserialize, Serialize};

use crate::KvCacheType;

/// Whether layers stay on the device, and with how large a look-ahead they are streamed if not (RS-6, RS-11); and how
/// their keys and values are kept (EN-2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Residency {
    /// Whether layers are streamed.
    #[serde(default)]
    pub mode: ResidencyMode,
    /// The look-ahead: blocks of layers fetched before the one in use; chosen by measurement when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// The number of layers in a block; chosen by their size when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<u32>,
    /// The way in which streamed layers are read; chosen by the file system when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreKind>,
    /// The type of keys and values.
    #[serde(default, skip_serializing_if = "KvCacheType::is_auto")]
    pub kv_cache_type: KvCacheType,
}

/// The residency of layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ResidencyMode {
    /// Layers that fit stay on the device; the others are streamed.
    #[default]
    Auto,
    /// All layers stay on the device, or the load fails.
    Resident,
    /// As many layers stay on the device as fit into its lease; the others are streamed.
    Stream,
}

impl ResidencyMode {
    /// The word used in manifests and on command lines.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Resident => "resident",
            Self::Stream => "stream",
        }
    }
}

impl std::fmt::Display for ResidencyMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text names no residency.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is none of auto, resident, stream")]
pub struct ParseResidencyError(String);

impl std::str::FromStr for ResidencyMode {
    type Err = ParseResidencyError;

    fn from_str(word: &str) -> Result<Self, ParseResidencyError> {
        [Self::Auto, Self::Resident, Self::Stream]
            .into_iter()
            .find(|mode| mode.as_str() == word)
            .ok_or_else(|| ParseResidencyError(word.to_owned()))
    }
}

/// How the bytes of streamed layers are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// Reads bypass the page cache where the file system supports that.
    #[default]
    Auto,
    /// Reads bypass the page cache, or the load fails.
    Direct,
    /// Layers are read from mapped files.
    Map,
    /// Host memory holds as many layers as fit beside all other use; the others are read from the file.
    Memory,
}

impl StoreKind {
    /// The word used in manifests and on command lines.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Map => "map",
            Self::Memory => "memory",
        }
    }
}

impl std::fmt::Display for StoreKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text names no way to read layers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is none of auto, direct, map, memory")]
pub struct ParseStoreError(String);

impl std::str::FromStr for StoreKind {
    type Err = ParseStoreError;

    fn from_str(word: &str) -> Result<Self, ParseStoreError> {
        [Self::Auto, Self::Direct, Self::Map, Self::Memory]
            .into_iter()
            .find(|kind| kind.as_str() == word)
            .ok_or_else(|| ParseStoreError(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_as_it_is_written() {
        for kind in [StoreKind::Auto, StoreKind::Direct, StoreKind::Map, StoreKind::Memory] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        assert!("mmap".parse::<StoreKind>().unwrap_err().to_string().contains("direct, map"));
    }
}
