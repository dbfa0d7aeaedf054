//! Prompts as tokens, and the encoders that make rows of them.

mod clip_encoder;
mod clip_tokens;
mod t5_tokens;
mod token_names;

pub(super) use clip_encoder::{ClipEncoder, ClipLayer, ClipSpec, ClipText};
pub(super) use clip_tokens::ClipTokens;
pub(super) use t5_tokens::T5Tokens;
