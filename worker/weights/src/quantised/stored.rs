//! A tensor as stored: type, shape and bytes, read as numbers.

use half::{bf16, f16};

use super::error::QuantisedError;
use crate::dtype::Dtype;

/// A tensor as stored, little-endian, row after row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedTensor<'a> {
    /// The name, for messages.
    pub name: String,
    /// The type of the elements.
    pub dtype: Dtype,
    /// Dimensions, slowest first; empty for a scalar.
    pub shape: Vec<usize>,
    /// As many bytes as type and shape say.
    pub bytes: &'a [u8],
}

/// The tensors of a model by name.
pub trait TensorSource {
    /// The tensor of that name, or none.
    fn find(&self, name: &str) -> Option<PackedTensor<'_>>;
}

impl TensorSource for crate::MappedWeights {
    fn find(&self, name: &str) -> Option<PackedTensor<'_>> {
        let entry = self.index().get(name)?;
        let (dtype, shape) = (entry.dtype, entry.shape.clone());
        Some(PackedTensor { name: name.to_owned(), dtype, shape, bytes: self.bytes(name).ok()? })
    }
}

pub(super) fn need<'s>(source: &'s dyn TensorSource, name: &str) -> Result<PackedTensor<'s>, QuantisedError> {
    source.find(name).ok_or_else(|| QuantisedError::Missing(name.to_owned()))
}

impl<'a> PackedTensor<'a> {
    /// Checks type and shape.
    pub(super) fn require(
        self,
        dtypes: &[Dtype],
        wanted: &'static str,
        shape: &[usize],
    ) -> Result<Self, QuantisedError> {
        if !dtypes.contains(&self.dtype) {
            return Err(QuantisedError::Type { name: self.name, found: self.dtype, wanted });
        }
        if self.shape != shape {
            return Err(QuantisedError::Shape { name: self.name, found: self.shape, wanted: shape.to_vec() });
        }
        Ok(self)
    }

    pub(super) fn unusable(&self, why: impl Into<String>) -> QuantisedError {
        QuantisedError::Unusable { name: self.name.clone(), why: why.into() }
    }

    /// Both dimensions.
    pub(super) fn matrix(&self) -> Result<[usize; 2], QuantisedError> {
        let shape: Result<[usize; 2], _> = self.shape.as_slice().try_into();
        shape.map_err(|_| self.unusable(format!("it has {} dimensions, and 2 are expected", self.shape.len())))
    }

    /// The 32-bit word at a place; 0 outside.
    pub(super) fn word(&self, at: usize) -> u32 {
        let (words, _) = self.bytes.as_chunks::<4>();
        words.get(at).map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    /// The element at a place as a float, for types of floats; 0 outside.
    pub(super) fn float(&self, at: usize) -> f32 {
        let pair = || self.bytes.as_chunks::<2>().0.get(at).copied().unwrap_or_default();
        match self.dtype {
            Dtype::F16 => f16::from_le_bytes(pair()).to_f32(),
            Dtype::BF16 => bf16::from_le_bytes(pair()).to_f32(),
            // A power of two, with the bias of f32 (OCP Microscaling Formats v1.0).
            Dtype::F8E8M0 => self.bytes.get(at).map_or(0.0, |byte| (f32::from(*byte) - 127.0).exp2()),
            _ => f32::from_bits(self.word(at)),
        }
    }

    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Types that scales are stored in.
pub(super) const FLOATS: &[Dtype] = &[Dtype::F16, Dtype::BF16, Dtype::F32];
