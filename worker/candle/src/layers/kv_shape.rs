//! The shape of a layer's keys and values, and the kind of memory that they have on a device.

use model_boss_kernels::{KvElement, KvValues, PageShape};

use crate::device::kernels;
use crate::matrix::kv_element::dtype_of_kv;
use crate::matrix::target::WeightTarget;
use crate::spec::{AttentionSpec, DecoderSpec, Mixer};

/// The kind of memory for a layer's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KvHome {
    /// Pages in the host's memory, for the attention of the CPU.
    Pages,
    /// Tensors, for attention by the operations that all devices have.
    Tensors,
    /// Tensors, for attention by this project's kernels.
    Kernels,
}

impl KvHome {
    /// The kind for a device.
    pub(crate) fn of(target: &WeightTarget, spec: &DecoderSpec) -> Self {
        let served = |shape: LayerKvShape| kernels::serve(&target.device, shape.head_dim, shape.value_dim());
        // Kernels have no other type of keys and values than that of queries.
        let alike = dtype_of_kv(target.cached) == Some(target.dtype);
        if target.device.is_cpu() {
            Self::Pages
        } else if alike && spec.layers.iter().filter_map(|layer| LayerKvShape::of(&layer.mixer)).all(served) {
            Self::Kernels
        } else {
            Self::Tensors
        }
    }
}

/// The keys and values that a layer keeps of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LayerKvShape {
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) values: KvValues,
}

impl LayerKvShape {
    /// None for a layer without attention, and for one that uses the keys and values of another.
    pub(super) fn of(mixer: &Mixer) -> Option<Self> {
        match mixer {
            Mixer::Attention(AttentionSpec { keys_of: Some(_), .. }) => None,
            Mixer::Attention(AttentionSpec { kv_heads, head_dim, .. })
            | Mixer::Both(AttentionSpec { kv_heads, head_dim, .. }, _) => {
                Some(Self { kv_heads: *kv_heads, head_dim: *head_dim, values: KvValues::Apart(*head_dim) })
            }
            Mixer::Latent(latent) => {
                Some(Self { kv_heads: 1, head_dim: latent.key_dim(), values: KvValues::InKeys(latent.rank) })
            }
            Mixer::ShortConv(_) | Mixer::DeltaNet(_) | Mixer::Mamba(_) | Mixer::None => None,
        }
    }

    fn value_dim(self) -> usize {
        match self.values {
            KvValues::Apart(width) | KvValues::InKeys(width) => width,
        }
    }

    pub(super) fn page(self, kept: KvElement) -> PageShape {
        PageShape { kv_heads: self.kv_heads, head_dim: self.head_dim, values: self.values, kept }
    }
}
