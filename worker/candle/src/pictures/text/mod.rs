//! Prompts as tokens, and the encoders that make rows of them.

mod clip_encoder;
mod clip_tokens;

pub(super) use clip_encoder::{ClipEncoder, ClipLayer, ClipSpec, ClipText};
pub(super) use clip_tokens::ClipTokens;
