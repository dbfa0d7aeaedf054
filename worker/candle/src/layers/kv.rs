//! Keys and values of one sequence. They are kept outside the layers, so that layers stay immutable and serve any
//! number of sequences. Attention is not known here.

use candle_core::{DType, Result, Tensor};

use crate::layers::cpu_attention::{HostKv, KvElement};
use crate::matrix::target::WeightTarget;
use crate::spec::DecoderSpec;

/// Tokens a sequence first gets room for; the room then doubles, so appending costs O(1) per token on average.
const FIRST_ROOM: usize = 256;

/// One layer's keys and values.
pub(crate) enum LayerKv {
    /// On the CPU.
    Host(HostKv),
    /// On other devices, in the type that the layer computes in.
    Device(DeviceKv),
}

/// Keys and values as tensors: `[kv_heads, room, head_dim]` each.
pub(crate) struct DeviceKv {
    keys: Tensor,
    values: Tensor,
}

impl DeviceKv {
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

/// A sequence: what its tokens left in every layer. Entries behind `len` are left over from steps that failed or tokens
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

    /// Makes room for `tokens` in all, each layer's where `targets` says, one for each. Keeps what is there; on an
    /// error nothing has changed.
    pub(crate) fn reserve<'t>(
        &mut self,
        tokens: usize,
        spec: &DecoderSpec,
        targets: impl Iterator<Item = &'t WeightTarget>,
    ) -> Result<()> {
        if tokens <= self.room {
            return Ok(());
        }
        let room = tokens.max(2 * self.room).max(FIRST_ROOM).min(self.capacity).max(tokens);
        let grown = |old: Option<&Tensor>, target: &WeightTarget| -> Result<Tensor> {
            let new = Tensor::zeros((spec.kv_heads, room, spec.head_dim), target.cached, &target.device)?;
            if let Some(old) = old.filter(|_| self.len > 0) {
                new.slice_set(&old.narrow(1, 0, self.len)?.contiguous()?, 1, 0)?;
            }
            Ok(new)
        };
        let mut on_host = Vec::new();
        let mut layers = Vec::new();
        for (index, target) in targets.enumerate() {
            if target.device.is_cpu() {
                on_host.push(index);
                let kept = if target.cached == DType::F16 { KvElement::Halves } else { KvElement::Floats };
                layers.push(LayerKv::Host(HostKv::new(spec.kv_heads, spec.head_dim, kept)));
                continue;
            }
            let old = match self.layers.get(index) {
                Some(LayerKv::Device(old)) => Some((&old.keys, &old.values)),
                _ => None,
            };
            let (keys, values) = (grown(old.map(|kv| kv.0), target)?, grown(old.map(|kv| kv.1), target)?);
            layers.push(LayerKv::Device(DeviceKv { keys, values }));
        }
        // Keys and values in host memory grow where they are, and untouched memory takes no pages.
        let of_tokens = if on_host.len() == layers.len() { HostKv::room_for(tokens) } else { room };
        let mut old = std::mem::take(&mut self.layers);
        let mut reserve = || -> std::io::Result<()> {
            for index in &on_host {
                let layer = if old.is_empty() { &mut layers[*index] } else { &mut old[*index] };
                if let LayerKv::Host(kv) = layer {
                    kv.reserve(of_tokens)?;
                }
            }
            Ok(())
        };
        if let Err(error) = reserve() {
            self.layers = old;
            return Err(error.into());
        }
        if !old.is_empty() {
            on_host.into_iter().for_each(|index| std::mem::swap(&mut old[index], &mut layers[index]));
        }
        (self.layers, self.room) = (layers, of_tokens);
        Ok(())
    }

    /// Tokens there is room for.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// One layer's part; `None` before the first [`Self::reserve`].
    pub(crate) fn layer(&mut self, index: usize) -> Option<&mut LayerKv> {
        self.layers.get_mut(index)
    }
}

/// Bytes of keys and values of one sequence of `tokens` in one layer. The host's memory is given in whole segments.
pub(crate) fn bytes_of_layer(spec: &DecoderSpec, target: &WeightTarget, tokens: usize) -> usize {
    let room = if target.device.is_cpu() { HostKv::room_for(tokens) } else { tokens };
    room.saturating_mul(bytes_per_layer(spec, target))
}

/// Bytes of keys and values for one token in one layer.
pub(crate) fn bytes_per_layer(spec: &DecoderSpec, target: &WeightTarget) -> usize {
    2 * spec.kv_width() * target.cached.size_in_bytes()
}
