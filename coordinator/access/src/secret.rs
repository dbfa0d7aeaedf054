//! The text of a key, and its digest. Keys are random, so a plain digest cannot be turned back. A slow one, as
//! passwords need, would cost every request milliseconds and protect nothing more.

use std::fmt;

use ring::digest;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The beginning of every drawn key, by which programs that look for leaked secrets can tell it.
const PREFIX: &str = "mb-";
/// The strength of a key in random bytes.
const STRENGTH: usize = 32;

/// The SHA-256 of a key. `Debug` shows its first bytes only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyDigest([u8; 32]);

/// The digest of one of a client's keys, and the time for which that is valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeySecret {
    /// The digest.
    pub sha256: KeyDigest,
    /// The time at which the key was drawn, in seconds since 1970.
    pub created: u64,
    /// The time from which the key is of no use, in seconds since 1970; never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
}

impl KeySecret {
    /// Whether the key is valid at this time.
    pub fn is_valid(&self, now: u64) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

/// Draws a key. Its text is shown once, and never kept.
pub fn draw_key() -> Result<String, getrandom::Error> {
    let mut bits = [0; STRENGTH];
    getrandom::fill(&mut bits)?;
    Ok(format!("{PREFIX}{}", hexadecimal(&bits)))
}

impl KeyDigest {
    /// The digest of a key's text.
    pub fn of(key: &str) -> Self {
        let digest = digest::digest(&digest::SHA256, key.as_bytes());
        let mut bytes = [0; 32];
        // A SHA-256 has 32 bytes.
        bytes.copy_from_slice(digest.as_ref());
        Self(bytes)
    }

    fn read(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyDigest({}…)", hexadecimal(&self.0[..4]))
    }
}

impl Serialize for KeyDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hexadecimal(&self.0))
    }
}

impl<'de> Deserialize<'de> for KeyDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::read(&text).ok_or_else(|| de::Error::custom("a digest is 64 hexadecimal digits (SHA-256 of the key)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_have_the_digest_of_other_programs() {
        let [one, two] = [draw_key().unwrap(), draw_key().unwrap()];
        assert!(one != two && one.starts_with("mb-") && one.len() == 67);
        // The digest of `printf abc | sha256sum`.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(serde_json::to_string(&KeyDigest::of("abc")).unwrap(), format!("\"{abc}\""));
        assert_eq!(serde_json::from_str::<KeyDigest>(&format!("\"{abc}\"")).unwrap(), KeyDigest::of("abc"));
        for wrong in [&abc[1..], &format!("{}ä", &abc[2..]), &abc.replace('b', "x")] {
            assert!(serde_json::from_str::<KeyDigest>(&format!("\"{wrong}\"")).is_err(), "{wrong}");
        }
    }
}
