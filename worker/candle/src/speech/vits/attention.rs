//! Attention whose scores know the distance of two symbols (Shaw et al., 2018, arXiv 1803.02155), up to a window.

use candle_core::{Device, Result as CandleResult, Tensor};

use super::spec::VitsSpec;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::speech::weights::SpeechWeights;

/// Attention of one layer.
pub(super) struct RelativeAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    /// Vectors of the distances for keys and values, `[2 window + 1, head]`.
    near: Option<[Tensor; 2]>,
    heads: usize,
    window: usize,
}

/// Where the distances of a text are found, the same in each layer.
pub(super) struct Distances {
    /// For each pair the place of its distance, `[symbols, symbols]`; one at either end means too far.
    of_pairs: Tensor,
    /// For each symbol and distance the other symbol, `[symbols, 2 window + 1]`; one behind the last means none.
    of_symbols: Tensor,
}

impl Distances {
    pub(super) fn new(symbols: usize, window: usize, device: &Device) -> CandleResult<Self> {
        let (count, reach) = (symbols as i64, window as i64);
        let mut of_pairs = Vec::with_capacity(symbols * symbols);
        let mut of_symbols = Vec::with_capacity(symbols * (2 * window + 1));
        for one in 0..count {
            of_pairs.extend((0..count).map(|other| (other - one + reach + 1).clamp(0, 2 * reach + 2) as u32));
            let other = |far: i64| if (0..count).contains(&(one + far)) { one + far } else { count };
            of_symbols.extend((-reach..=reach).map(|far| other(far) as u32));
        }
        Ok(Self {
            of_pairs: Tensor::from_vec(of_pairs, (1, symbols, symbols), device)?,
            of_symbols: Tensor::from_vec(of_symbols, (1, symbols, 2 * window + 1), device)?,
        })
    }
}

impl RelativeAttention {
    pub(super) fn read(weights: &mut SpeechWeights<'_, '_>, path: &str, spec: &VitsSpec) -> Result<Self, ModelError> {
        let width = spec.hidden_size;
        let mut linear = |name: &str| weights.linear(&format!("{path}.{name}"), [width; 2]);
        let (query, key) = (linear("q_proj")?, linear("k_proj")?);
        let (value, out) = (linear("v_proj")?, linear("out_proj")?);
        let near = match spec.window() {
            Some(window) => {
                let shape = [1, 2 * window + 1, width / spec.num_attention_heads];
                let mut read = |name: &str| {
                    let vectors = weights.tensor(&format!("{path}.{name}"), &shape)?;
                    weights.made(vectors.squeeze(0))
                };
                Some([read("emb_rel_k")?, read("emb_rel_v")?])
            }
            None => None,
        };
        Ok(Self { query, key, value, out, near, heads: spec.num_attention_heads, window: spec.window().unwrap_or(0) })
    }

    /// `[symbols, width]` → `[symbols, width]`.
    pub(super) fn forward(&self, x: &Tensor, distances: &Distances) -> CandleResult<Tensor> {
        let (symbols, width) = x.dims2()?;
        let head = width / self.heads;
        let split = |rows: Tensor| rows.reshape((symbols, self.heads, head))?.transpose(0, 1)?.contiguous();
        let query = split((self.query.forward(x)? * (head as f64).powf(-0.5))?)?;
        let (key, value) = (split(self.key.forward(x)?)?, split(self.value.forward(x)?)?);
        let mut scores = query.matmul(&key.t()?.contiguous()?)?;
        let everywhere = |index: &Tensor| index.repeat((self.heads, 1, 1))?.contiguous();
        if let Some([of_keys, _]) = &self.near {
            let near = query.reshape((self.heads * symbols, head))?.matmul(&of_keys.t()?.contiguous()?)?;
            let near = near.reshape((self.heads, symbols, 2 * self.window + 1))?.pad_with_zeros(2, 1, 1)?;
            scores = (scores + near.contiguous()?.gather(&everywhere(&distances.of_pairs)?, 2)?)?;
        }
        let shares = candle_nn::ops::softmax_last_dim(&scores)?;
        let mut mixed = shares.matmul(&value)?;
        if let Some([_, of_values]) = &self.near {
            let near = shares.pad_with_zeros(2, 0, 1)?.contiguous()?;
            let near = near.gather(&everywhere(&distances.of_symbols)?, 2)?;
            let near = near.reshape((self.heads * symbols, 2 * self.window + 1))?.matmul(of_values)?;
            mixed = (mixed + near.reshape((self.heads, symbols, head))?)?;
        }
        self.out.forward(&mixed.transpose(0, 1)?.contiguous()?.reshape((symbols, width))?)
    }
}
