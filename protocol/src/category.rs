//! The categories of models, by what they compute.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The category of a model. It decides which endpoints a model serves and how long it stays warm by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Category {
    /// Text in, text out (a chat model that accepts images is still `llm`).
    #[default]
    Llm,
    /// Text in, a vector out.
    Embedding,
    /// A query and documents in, scores out.
    Reranking,
    /// Image and text towers.
    Vision,
    /// Images out.
    Diffusion,
    /// Speech out.
    Tts,
    /// Speech in, text out.
    Transcription,
}

/// A kind of input that a model takes (MM-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Modality {
    /// Text.
    Text,
    /// Images, for a chat model that accepts them or an image tower.
    Image,
    /// Sound.
    Audio,
}

/// The text names no category.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a category; one of llm, embedding, reranking, vision, diffusion, tts, transcription")]
pub struct ParseCategoryError(String);

impl Category {
    /// Every category.
    pub const ALL: [Self; 7] =
        [Self::Llm, Self::Embedding, Self::Reranking, Self::Vision, Self::Diffusion, Self::Tts, Self::Transcription];

    /// The time that a model of this category stays loaded after its last use, unless another setting applies (RC-8).
    pub const fn stay_warm(self) -> Duration {
        Duration::from_secs(match self {
            Self::Diffusion => 900,
            Self::Vision => 60,
            Self::Llm | Self::Embedding | Self::Reranking | Self::Tts | Self::Transcription => 300,
        })
    }

    /// The word used in manifests, the API and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Llm => "llm",
            Self::Embedding => "embedding",
            Self::Reranking => "reranking",
            Self::Vision => "vision",
            Self::Diffusion => "diffusion",
            Self::Tts => "tts",
            Self::Transcription => "transcription",
        }
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Category {
    type Err = ParseCategoryError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|c| c.as_str() == text).ok_or_else(|| ParseCategoryError(text.to_owned()))
    }
}
