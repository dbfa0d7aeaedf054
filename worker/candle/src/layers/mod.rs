//! A transformer's layers: attention, feed-forward, norms, positions, and the keys and values beside them. Knows no
//! files.

mod activation;
mod attention;
pub(crate) mod kv;
pub(crate) mod layer;
pub(crate) mod linear;
mod mlp;
pub(crate) mod named_weights;
pub(crate) mod norm;
pub(crate) mod rope;
pub(crate) mod step;
