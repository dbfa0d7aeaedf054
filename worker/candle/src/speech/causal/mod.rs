//! Layers of a transformer over moments that come one after another. Keys and values are kept for one speaker's part.

mod causal_layer;
mod causal_layers;
mod causal_spec;
mod causal_step;
mod mixing;

pub(super) use causal_layers::{CausalLayers, CausalMemory};
pub(super) use causal_spec::CausalSpec;
pub(super) use mixing::mixed;
