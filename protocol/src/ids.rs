//! Newtypes for names and numbers, so that they cannot be mixed up.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// The text of the id.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

text_id! {
    /// The name of a model as its manifest gives it. The name may contain `/` and `:`.
    ModelId
}
text_id! {
    /// The client that sends a request (`x_client_id`, `X-Client-Id`); `anonymous` where none is named.
    ClientId
}
number_id! {
    /// The number of a request inside one coordinator process; the public `x-request-id` is a text beside it.
    RequestId
}
number_id! {
    /// A slot: one model on one device set in the pool.
    SlotId
}
number_id! {
    /// The number of times a slot was filled. An event with an older generation concerns a worker that has exited.
    Generation
}
number_id! {
    /// A number of tokens.
    Tokens
}

/// A secret for one spawn: 128 random bits as 32 hexadecimal digits. `Debug` never shows it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SpawnToken(String);

impl SpawnToken {
    /// A token from 128 bits of the caller's randomness.
    pub fn from_bits(bits: u128) -> Self {
        Self(format!("{bits:032x}"))
    }

    /// The secret text.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether `offered` is this secret, in constant time for texts of the same length.
    pub fn matches(&self, offered: &str) -> bool {
        let (a, b) = (self.0.as_bytes(), offered.as_bytes());
        a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (x, y)| difference | (x ^ y)) == 0
    }
}

impl fmt::Debug for SpawnToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpawnToken(…)")
    }
}

/// The name in front of the tag that Ollama's clients add to names without one.
pub fn without_latest(name: &str) -> Option<&str> {
    name.strip_suffix(":latest").filter(|name| !name.is_empty())
}
