//! The name of a repository of a hub, such as `org/model`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// The longest name, and the longest part of one.
const LONGEST: usize = 96;

/// A repository of models: `ORG/NAME`, or a bare `NAME` as the oldest ones have it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HubRepo(String);

/// The text is no name of a repository.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' names no repository: write ORG/NAME with letters, digits and . _ -")]
pub struct ParseHubRepoError(String);

impl HubRepo {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last part of the name.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }
}

/// Whether a text may be one part of a name. Two hyphens would be read as `/` in the cache.
fn is_part(part: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let ends = [part.bytes().next(), part.bytes().last()];
    !part.is_empty()
        && part.bytes().all(allowed)
        && !part.contains("--")
        && !part.contains("..")
        && ends.iter().flatten().all(|end| !b".-".contains(end))
}

impl FromStr for HubRepo {
    type Err = ParseHubRepoError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Vec<&str> = text.split('/').collect();
        let is_name = text.len() <= LONGEST && parts.len() <= 2 && parts.iter().all(|part| is_part(part));
        if is_name { Ok(Self(text.to_owned())) } else { Err(ParseHubRepoError(text.to_owned())) }
    }
}

impl fmt::Display for HubRepo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for HubRepo {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_6_a_repository_has_a_name_that_no_path_hides_in() {
        for good in ["org/model", "gpt2", "Qwen/Qwen3-0.6B", "a/b_c.d", "0/1"] {
            assert_eq!(good.parse::<HubRepo>().unwrap().as_str(), good);
        }
        for bad in ["", "/", "a/", "/a", "a/b/c", "../x", "a/..", "a/b--c", "a b/c", "a/b%2F", "-a/b", "a/b."] {
            assert!(bad.parse::<HubRepo>().is_err(), "{bad}");
        }
        assert_eq!("org/model".parse::<HubRepo>().unwrap().name(), "model");
    }
}
