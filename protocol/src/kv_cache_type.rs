//! The type that a model's keys and values are kept in, as an operator sets it.

use serde::{Deserialize, Serialize};

/// The type of the elements of keys and values. The words are llama.cpp's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum KvCacheType {
    /// f32 for models stored in f32, else f16; on a GPU the type that the model computes in.
    #[default]
    Auto,
    /// 32 bits.
    F32,
    /// 16 bits.
    F16,
    /// 16 bits with the range of 32.
    Bf16,
    /// 8 bits, and a scale of 16 bits for each 32 elements: nearly twice the tokens of `f16` in the same memory.
    #[serde(rename = "q8_0")]
    Q8_0,
}

impl KvCacheType {
    /// All types.
    pub const ALL: [Self; 5] = [Self::Auto, Self::F32, Self::F16, Self::Bf16, Self::Q8_0];

    /// Whether the model decides.
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }

    /// The word used in manifests and on command lines.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
        }
    }

    /// Bytes of one head of this many elements; `None` where the model decides.
    pub const fn bytes_of(self, elements: u64) -> Option<u64> {
        match self {
            Self::Auto => None,
            Self::F32 => Some(elements.saturating_mul(4)),
            Self::F16 | Self::Bf16 => Some(elements.saturating_mul(2)),
            Self::Q8_0 => Some(elements.saturating_add(elements.div_ceil(32).saturating_mul(2))),
        }
    }
}

impl std::fmt::Display for KvCacheType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text names no type of keys and values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is none of auto, f32, f16, bf16, q8_0")]
pub struct ParseKvCacheTypeError(String);

impl std::str::FromStr for KvCacheType {
    type Err = ParseKvCacheTypeError;

    fn from_str(word: &str) -> Result<Self, ParseKvCacheTypeError> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word).ok_or_else(|| ParseKvCacheTypeError(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_as_it_is_written() {
        for kind in KvCacheType::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            assert_eq!(serde_json::from_value::<KvCacheType>(kind.as_str().into()).unwrap(), kind);
        }
        assert!("q4_0".parse::<KvCacheType>().unwrap_err().to_string().contains("bf16, q8_0"));
    }

    #[test]
    fn en_2_bytes_are_those_of_groups_of_thirty_two() {
        let bytes = |elements| KvCacheType::ALL.map(|kind| kind.bytes_of(elements));
        assert_eq!(bytes(64), [None, Some(256), Some(128), Some(128), Some(68)]);
        assert_eq!(KvCacheType::Q8_0.bytes_of(33), Some(37));
    }
}
