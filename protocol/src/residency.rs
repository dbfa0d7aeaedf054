//! Where a model's layers live, as an operator asks for it.

use serde::{Deserialize, Serialize};

/// Whether layers stay on the device, and through how large a window they come if not (RS-6, RS-11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Residency {
    /// Which way.
    #[serde(default)]
    pub mode: ResidencyMode,
    /// Blocks of layers fetched ahead of the one in use; chosen by measurement when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// Layers of a block; chosen by their size when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<u32>,
}

/// Where layers live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ResidencyMode {
    /// On the device if they fit, else what does not fit is streamed.
    #[default]
    Auto,
    /// On the device, or not at all.
    Resident,
    /// As many on the device as fit into what was given; the others are streamed.
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

/// Not a way for layers to live.
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
