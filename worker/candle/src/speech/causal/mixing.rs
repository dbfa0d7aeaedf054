//! Attention of moments to others.

use candle_core::{Result as CandleResult, Tensor};
use candle_nn::ops::softmax_last_dim;

/// The values of others, mixed for each moment: `[moments, heads * head]`. Queries have the shape
/// `[heads, moments, head]`, keys and values `[kv_heads, keys, head]`, and a mask `[moments, keys]` is added to scores.
pub(in crate::speech) fn mixed(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    mask: Option<&Tensor>,
) -> CandleResult<Tensor> {
    let (heads, moments, head) = query.dims3()?;
    let (kv_heads, keys, _) = key.dims3()?;
    // Query heads that share a head of keys are rows of one product.
    let query = query.reshape((kv_heads, heads / kv_heads * moments, head))?;
    let mut scores = query.matmul(&key.t()?.contiguous()?)?;
    if let Some(mask) = mask {
        let each = scores.reshape((heads, moments, keys))?.broadcast_add(mask)?;
        scores = each.reshape((kv_heads, heads / kv_heads * moments, keys))?;
    }
    let mixed = softmax_last_dim(&scores)?.matmul(&value.contiguous()?)?;
    let mixed = mixed.reshape((heads, moments, head))?.transpose(0, 1)?.contiguous()?;
    mixed.reshape((moments, heads * head))
}
