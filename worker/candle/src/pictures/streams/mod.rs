//! Parts of transformers that read a text and a picture in two streams, which see each other (Esser et al., 2024, arXiv
//! 2403.03206). Rows of a stream are those of the first picture of a request, then those of the second.

mod joint_block;
mod modulation;
mod patches;
mod stream_attention;
mod stream_conditions;
mod stream_turns;

pub(super) use joint_block::{JointBlock, JointForm, JointRows, StreamBlockSpec};
pub(super) use modulation::Modulation;
pub(super) use patches::{PatchNumbers, PatchSizes};
pub(super) use stream_attention::{StreamAttention, StreamNames, StreamSight};
pub(super) use stream_conditions::StreamConditions;
pub(super) use stream_turns::StreamTurns;
