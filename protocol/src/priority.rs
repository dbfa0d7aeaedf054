//! The importance of requests.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// 0 (most important) to 9 (least), default 5 (RC-3). The derived order puts the most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Priority(u8);

/// The text or number is no priority.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a priority; write 0 (most important) to 9, or interactive, normal or batch")]
pub struct ParsePriorityError(String);

impl Priority {
    /// The most important.
    pub const HIGHEST: Self = Self(0);
    /// The priority of requests of a person who waits for the answer.
    pub const INTERACTIVE: Self = Self(2);
    /// The priority of requests that state none.
    pub const NORMAL: Self = Self(5);
    /// The priority of requests that can wait until there is room.
    pub const BATCH: Self = Self(8);
    /// The priority of training jobs that lease memory, unless they state another (LE-3).
    pub const TRAINING: Self = Self(7);
    /// The least important.
    pub const LOWEST: Self = Self(9);

    /// A priority from its number.
    pub fn new(number: u8) -> Result<Self, ParsePriorityError> {
        if number <= 9 { Ok(Self(number)) } else { Err(ParsePriorityError(number.to_string())) }
    }

    /// The number, 0 to 9.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// A priority more important by `steps`, but at most 1, so that 0 is never overtaken (RC-5).
    #[must_use]
    pub fn aged(self, steps: u64) -> Self {
        if self.0 <= 1 {
            return self;
        }
        Self(self.0.saturating_sub(u8::try_from(steps).unwrap_or(u8::MAX)).max(1))
    }

    /// A priority less important by `steps`, at most 9.
    #[must_use]
    pub fn faded(self, steps: u64) -> Self {
        Self(self.0.saturating_add(u8::try_from(steps).unwrap_or(u8::MAX)).min(9))
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::NORMAL
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for Priority {
    type Err = ParsePriorityError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim() {
            "interactive" => Ok(Self::INTERACTIVE),
            "normal" => Ok(Self::NORMAL),
            "batch" => Ok(Self::BATCH),
            number => {
                let number = number.parse().map_err(|_| ParsePriorityError(text.to_owned()))?;
                Self::new(number)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Priority {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a number from 0 to 9, or \"interactive\", \"normal\" or \"batch\"")]
        enum WrittenPriority {
            Number(i64),
            Text(String),
        }
        let bad = |text: String| serde::de::Error::custom(ParsePriorityError(text));
        match WrittenPriority::deserialize(deserializer)? {
            WrittenPriority::Number(n) => {
                u8::try_from(n).ok().and_then(|n| Self::new(n).ok()).ok_or_else(|| bad(n.to_string()))
            }
            WrittenPriority::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_3_numbers_and_words() {
        assert_eq!("interactive".parse(), Ok(Priority::INTERACTIVE));
        assert_eq!("7".parse(), Priority::new(7));
        for bad in ["10", "-1", "urgent", ""] {
            assert!(bad.parse::<Priority>().is_err(), "{bad}");
        }
        assert_eq!(serde_json::from_str::<Priority>("\"batch\"").unwrap(), Priority::BATCH);
        assert_eq!(serde_json::from_str::<Priority>("3").unwrap().number(), 3);
        assert!(serde_json::from_str::<Priority>("12").is_err());
    }

    #[test]
    fn rc_5_aging_never_overtakes_zero() {
        assert_eq!(Priority::NORMAL.aged(2).number(), 3);
        assert_eq!(Priority::NORMAL.aged(400).number(), 1);
        assert_eq!(Priority::HIGHEST.aged(3), Priority::HIGHEST);
        assert_eq!(Priority::BATCH.faded(9), Priority::LOWEST);
    }
}
