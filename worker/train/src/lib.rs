//! The trainer of `guide`, the chat model that is built in: corpus, tokenizer, a Llama with gradients, optimiser,
//! package. Runs on the CPU alone and knows nothing of serving.
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
