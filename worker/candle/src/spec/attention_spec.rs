//! Descriptions of attention: heads, norms and rotations, and what a query sees.

use model_boss_kernels::NormOrder;

/// Attention over keys and values of each token, which query heads share in groups (Ainslie et al., 2023, arXiv
/// 2305.13245).
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head. `heads * head_dim` need not be the stream's width.
    pub head_dim: usize,
    /// The projections that have a bias.
    pub bias: AttentionBias,
    /// The norm of queries and keys.
    pub norm: QueryKeyNorm,
    /// The number of the rotary position embedding; none where positions are not encoded.
    pub rope: Option<usize>,
    /// The keys that a query sees, its own included; all before it without a window.
    pub window: Option<usize>,
    /// Whether a query sees the keys behind it too, by a window as many as before it: the model gives vectors of whole
    /// texts, and writes none.
    pub both_ways: bool,
    /// The factor on scores.
    pub scale: f64,
    /// The bound of scores, which the hyperbolic tangent keeps them within.
    pub softcap: Option<f64>,
    /// Whether each head's value is divided by its root mean square.
    pub value_norm: bool,
    /// The layer whose keys and values this one uses; it has none of its own then.
    pub keys_of: Option<usize>,
    /// The bound that queries, keys and values are clamped to behind their norms.
    pub clamp: Option<f64>,
    /// Whether each head has a learned score for no value (Xiao et al., 2023, arXiv 2309.17453).
    pub sinks: bool,
    /// Whether the query's projection has a gate for the attended values beside each head's query.
    pub output_gate: bool,
}

/// The attention projections that have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionBias {
    /// No projection has a bias.
    None,
    /// The projections of query, key and value, as in Qwen2.
    QueryKeyValue,
    /// The projection of the output.
    Output,
    /// All four projections: query, key, value and output.
    All,
}

impl AttentionBias {
    /// Whether the projections of inputs have a bias.
    pub fn of_inputs(self) -> bool {
        matches!(self, Self::QueryKeyValue | Self::All)
    }

    /// Whether the projection of the output has a bias.
    pub fn of_output(self) -> bool {
        matches!(self, Self::Output | Self::All)
    }
}

/// The norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKeyNorm {
    /// None.
    None,
    /// RMSNorm of each head by itself, with weights that all heads share.
    Heads(NormOrder),
    /// RMSNorm over all heads together, before the rotation, as in OLMo 2.
    Whole,
    /// LayerNorm of each head by itself, each with weights of its own, before the rotation, as in Cohere.
    LayerPerHead,
}

/// Attention over one latent vector of each token, from which each head's key and value are made (DeepSeek-AI, 2024,
/// arXiv 2405.04434).
#[derive(Clone, Debug, PartialEq)]
pub struct LatentSpec {
    /// Number of heads.
    pub heads: usize,
    /// Width of the vector that queries are made of; queries are made of the stream without it.
    pub query_rank: Option<usize>,
    /// Width of the latent vector of keys and values.
    pub rank: usize,
    /// Width of a head's query and key that is not rotated.
    pub plain_dim: usize,
    /// Width of a head's query, and of the key that all heads share, that is rotated.
    pub rope_dim: usize,
    /// Width of a head's value.
    pub value_dim: usize,
    /// Whether the projections of the stream have a bias.
    pub bias: bool,
    /// The number of the rotary position embedding.
    pub rope: usize,
    /// The factor on scores.
    pub scale: f64,
    /// The epsilon of the norms of both vectors.
    pub norm_eps: f64,
    /// The form in which the files have the products with latent vectors.
    pub stored: LatentProducts,
}

/// The stored form of the products that make keys and values of latent vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatentProducts {
    /// One matrix, each head's rows of keys before its rows of values.
    Together,
    /// Two tensors, that of keys turned over: `[heads, rank, plain_dim]` and `[heads, value_dim, rank]`.
    Apart,
}

impl AttentionSpec {
    /// Heads with the usual scale, without bias, norm or window, and with the first rope.
    pub fn plain(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            heads,
            kv_heads,
            head_dim,
            bias: AttentionBias::None,
            norm: QueryKeyNorm::None,
            rope: Some(0),
            window: None,
            both_ways: false,
            scale: (head_dim as f64).powf(-0.5),
            softcap: None,
            value_norm: false,
            keys_of: None,
            clamp: None,
            sinks: false,
            output_gate: false,
        }
    }

    /// Width of all query heads.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key heads, and of all value heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Rows of the query's projection.
    pub fn query_rows(&self) -> usize {
        self.q_width() * if self.output_gate { 2 } else { 1 }
    }
}

impl LatentSpec {
    /// Width of one head's query.
    pub fn query_dim(&self) -> usize {
        self.plain_dim + self.rope_dim
    }

    /// Width of what is kept of a token: the latent vector, and the rotated key behind it.
    pub fn key_dim(&self) -> usize {
        self.rank + self.rope_dim
    }
}
