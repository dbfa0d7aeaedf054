//! CSM (Sesame, 2025), as `transformers` keeps it: a decoder over texts and frames of sound, a small decoder over the
//! codebooks of a frame, and the codec Mimi.

mod csm_generation;
mod csm_prompt;
mod csm_speaker;
mod csm_spec;
mod frame_decoder;

pub(super) use csm_speaker::load;
