//! The contract between the worker's shell and an encoder, which turns texts into vectors.

use crate::decoder::DecoderError;
use crate::places::PlaceUse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Facts about an encoder that requests are checked by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderInfo {
    /// Token ids are below this.
    pub vocab_size: usize,
    /// The longest text, in tokens with the special ones.
    pub max_tokens: usize,
    /// Numbers of a vector.
    pub width: usize,
    /// Bytes of weights held.
    pub weight_bytes: u64,
    /// Texts that the model's folder has to put in front of inputs, by their names (`query`, `document`).
    pub prompts: BTreeMap<String, String>,
    /// The one that is used where a request names none.
    pub default_prompt: Option<String>,
}

/// A model that turns texts into vectors.
pub trait TextEncoder: Send {
    /// The facts.
    fn info(&self) -> &EncoderInfo;

    /// The use of the encoder's device.
    fn places(&self) -> Arc<[PlaceUse]>;

    /// The vectors of some texts, computed in one pass. A text is never empty, has at most
    /// [`EncoderInfo::max_tokens`] tokens, and its vector does not depend on the others.
    fn encode(&mut self, texts: &[&[u32]]) -> Result<Vec<Vec<f32>>, DecoderError>;
}
