//! The trainer of `guide`, the built-in chat model: corpus, tokenizer, a Llama with gradients, optimiser, package. It
//! runs on the CPU alone and serves no requests.
#![allow(clippy::arithmetic_side_effects, reason = "tensors have operators too; nothing here adds to a clock's moment")]

pub mod batch;
pub mod checkpoint;
pub mod corpus;
pub mod curve;
pub mod evaluate;
pub mod model;
pub mod ops;
pub mod optimizer;
pub mod package;
pub mod plan;
pub mod rng;
pub mod text;
pub mod trainer;
