//! ModelFacts about a model from either format, and those that most families have in common.

mod base;
mod both_formats;
mod config_facts;
mod gguf_facts;
mod layers;
mod rope;

pub(crate) use base::{Base, Defaults, activation};
pub(crate) use both_formats::ModelFacts;
pub(crate) use config_facts::ConfigFacts;
pub(crate) use gguf_facts::GgufFacts;
pub(crate) use layers::{all_but_each, per_layer};
pub(crate) use rope::{RopeDefaults, warmth};
