//! Layers of models of pictures: planes of pixels, their convolutions and norms, and times as rows.

mod attention;
mod fields;
mod plane_conv;
mod plane_norm;
mod plane_weights;
mod planes;
mod residual_block;
mod time_rows;

pub(super) use attention::{CrossAttention, PlaneAttention};
pub(super) use fields::{ComponentFields, misfit};
pub(super) use plane_conv::{Border, PlaneConv};
pub(super) use plane_norm::{AfterNorm, PlaneNorm};
pub(super) use plane_weights::PlaneWeights;
pub(super) use planes::Planes;
pub(super) use residual_block::{PlaneResidual, ResidualSizes};
pub(super) use time_rows::{TimeEmbedding, TimeSines};
