//! Tokens as text, whole characters only.

use crate::text::Vocabulary;

/// The bytes of tokens.
pub trait TokenTexts: Send + Sync {
    /// The bytes of a token by itself.
    fn bytes(&self, token: u32) -> &[u8];
}

impl TokenTexts for Vocabulary {
    fn bytes(&self, token: u32) -> &[u8] {
        Vocabulary::bytes(self, token)
    }
}

/// The text of tokens; broken characters become U+FFFD.
pub(super) fn text_of(texts: &dyn TokenTexts, tokens: impl IntoIterator<Item = u32>) -> String {
    let bytes: Vec<u8> = tokens.into_iter().flat_map(|token| texts.bytes(token)).copied().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
