//! From a row of logits to a token. Knows nothing of text, batches or devices.
//!
//! The order is: mask, logit bias, penalties, temperature, `top_k`, `top_p`, `min_p`, draw. A token depends on the row,
//! the parameters, the tokens of this one sequence and its own random numbers. Other sequences of the batch cannot
//! change an answer.

mod filters;
mod logprobs;
mod mask;
mod params;
mod penalties;
mod row;
mod sampler;
#[cfg(test)]
mod tests;

pub use logprobs::{LogprobRow, TokenLogprob, TopLogprob};
pub use mask::TokenMask;
pub use params::SamplingParams;
pub use sampler::Sampler;
