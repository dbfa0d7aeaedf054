//! From a row of logits to a token. Knows nothing of text, batches or devices.
//!
//! The order is: mask, logit bias, penalties, `dry`, `top_n_sigma`, `top_k`, `typical_p`, temperature, `top_p`,
//! `min_p`, `xtc`, draw. `typical_p` and `xtc` look at the distribution without the temperature, as in llama.cpp's
//! default order. A token depends on the row, the parameters, the tokens of this one sequence and its own random
//! numbers. Other sequences of the batch cannot change an answer.

mod dry;
mod filters;
mod logprobs;
mod mask;
mod params;
mod penalties;
mod row;
mod sampler;
#[cfg(test)]
mod tests;
mod truncation;

pub use dry::{DryBreakers, DryParams};
pub use logprobs::{LogprobRow, TokenLogprob, TopLogprob};
pub use mask::TokenMask;
pub use params::SamplingParams;
pub use sampler::Sampler;
