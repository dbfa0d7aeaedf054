//! A transformer's layers: attention, feed-forward, norms, positions, and the keys and values beside them. Knows no
//! files.

mod activation;
mod attend;
mod attention;
pub(crate) mod experts;
pub(crate) mod kv;
mod latent;
pub(crate) mod layer;
pub(crate) mod linear;
pub(crate) mod mlp;
pub(crate) mod named_weights;
pub(crate) mod norm;
pub(crate) mod rope;
mod router;
pub(crate) mod step;
pub(crate) mod streams;
