//! A transformer's layers: attention, parts with states, feed-forward, norms, positions, and the keys, values and
//! states beside them. Knows no files.

mod activation;
mod attend;
mod attention;
mod delta_net;
pub(crate) mod experts;
pub(crate) mod kv;
mod kv_block;
mod kv_room;
pub(crate) mod kv_shape;
mod latent;
pub(crate) mod layer;
pub(crate) mod linear;
mod mamba;
pub(crate) mod mlp;
pub(crate) mod named_weights;
pub(crate) mod norm;
mod recurrent;
pub(crate) mod rope;
mod router;
mod short_conv;
pub(crate) mod span;
pub(crate) mod states;
pub(crate) mod step;
pub(crate) mod streams;
