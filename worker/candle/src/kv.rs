//! Keys and values of one sequence. They live outside the layers, so that layers stay immutable and serve any number of
//! sequences. Knows shapes and lengths, no attention.

use candle_core::{DType, Result, Tensor};

use crate::reader::Target;
use crate::spec::DecoderSpec;

/// Tokens a sequence first gets room for; the room then doubles, so appending costs O(1) per token on average.
const FIRST_ROOM: usize = 256;

/// One layer's keys and values: `[kv_heads, room, head_dim]` each.
pub(crate) struct LayerKv {
    keys: Tensor,
    values: Tensor,
}

impl LayerKv {
    /// Writes `[kv_heads, tokens, head_dim]` behind the first `at` tokens.
    pub(crate) fn write(&self, keys: &Tensor, values: &Tensor, at: usize) -> Result<()> {
        self.keys.slice_set(keys, 1, at)?;
        self.values.slice_set(values, 1, at)
    }

    /// Views of the first `tokens` keys and values.
    pub(crate) fn first(&self, tokens: usize) -> Result<(Tensor, Tensor)> {
        Ok((self.keys.narrow(1, 0, tokens)?, self.values.narrow(1, 0, tokens)?))
    }
}

/// A sequence: what its tokens left in every layer. What lies behind `len` is garbage from steps that failed or tokens
/// that were cut off.
pub(crate) struct SequenceKv {
    layers: Vec<LayerKv>,
    room: usize,
    pub(crate) len: usize,
    pub(crate) capacity: usize,
}

impl SequenceKv {
    /// An empty sequence; takes no memory yet.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { layers: Vec::new(), room: 0, len: 0, capacity }
    }

    /// Makes room for `tokens` in all, each layer's where `targets` says, one for each. Keeps what is there; on an error
    /// nothing has changed.
    pub(crate) fn reserve<'t>(
        &mut self,
        tokens: usize,
        spec: &DecoderSpec,
        targets: impl Iterator<Item = &'t Target>,
    ) -> Result<()> {
        if tokens <= self.room {
            return Ok(());
        }
        let room = tokens.max(2 * self.room).max(FIRST_ROOM).min(self.capacity).max(tokens);
        let grown = |old: Option<&Tensor>, target: &Target| -> Result<Tensor> {
            let new = Tensor::zeros((spec.kv_heads, room, spec.head_dim), target.dtype, &target.device)?;
            if let Some(old) = old.filter(|_| self.len > 0) {
                new.slice_set(&old.narrow(1, 0, self.len)?.contiguous()?, 1, 0)?;
            }
            Ok(new)
        };
        let layers = targets
            .enumerate()
            .map(|(index, target)| {
                let old = self.layers.get(index);
                let (keys, values) = (old.map(|kv| &kv.keys), old.map(|kv| &kv.values));
                Ok(LayerKv { keys: grown(keys, target)?, values: grown(values, target)? })
            })
            .collect::<Result<_>>()?;
        (self.layers, self.room) = (layers, room);
        Ok(())
    }

    /// Tokens there is room for.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// One layer's part; `None` before the first [`Self::reserve`].
    pub(crate) fn layer(&self, index: usize) -> Option<&LayerKv> {
        self.layers.get(index)
    }
}

/// Bytes of keys and values for one token.
pub(crate) fn bytes_per_token(spec: &DecoderSpec, dtype: DType) -> usize {
    2 * spec.layers * spec.kv_width() * dtype.size_in_bytes()
}
