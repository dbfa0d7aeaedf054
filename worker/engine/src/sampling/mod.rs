//! From a row of logits to a token. Knows nothing of text, batches or devices.
//!
//! The order is: logit bias, penalties, temperature, `top_k`, `top_p`, `min_p`, draw. Everything is a function of the
//! row, the parameters, the tokens of this one sequence and its own random numbers, so what else is in the batch cannot
//! change an answer.

mod filters;
mod logprobs;
mod params;
mod penalties;
mod row;
mod sampler;
#[cfg(test)]
mod tests;

pub use logprobs::{LogprobRow, TokenLogprob, TopLogprob};
pub use params::SamplingParams;
pub use sampler::Sampler;
