//! Short identifiers of calls, which the templates of some models insist on.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Letters and digits of short identifiers.
const LETTERS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// An identifier of nine letters and digits.
pub(super) fn short_id(mut bits: u64) -> String {
    let letter = |_| {
        let at = usize::try_from(bits % 62).unwrap_or(0);
        bits /= 62;
        char::from(LETTERS[at])
    };
    (0..9).map(letter).collect()
}

/// The same call's short identifier wherever it is named.
pub(super) fn shortened(id: &str) -> String {
    if id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    short_id(hasher.finish())
}
