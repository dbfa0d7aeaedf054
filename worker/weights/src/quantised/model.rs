//! All quantised matrices of a model's safetensors, as if a file had them in blocks.
//!
//! Each matrix has a place in that file, and its bytes are made of the stored tensors when they are read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::error::QuantisedError;
use super::format::QuantisedFormat;
use super::fp8::Fp8Matrix;
use super::integers::IntegerMatrix;
use crate::dtype::Dtype;
use crate::gguf::TensorType;
use crate::safetensors::MappedWeights;
use crate::store::{Extent, PAGE};

/// The ends of the names of tensors that quantised matrices are made of, the largest one first.
const PARTS: [&str; 12] = [
    "qweight",
    "weight_packed",
    "weight",
    "qzeros",
    "scales",
    "g_idx",
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "weight_g_idx",
    "weight_shape",
    "input_scale",
];

/// A model's safetensors files, some of whose matrices are quantised.
#[derive(Debug)]
pub struct QuantisedModel {
    weights: MappedWeights,
    format: QuantisedFormat,
    matrices: BTreeMap<String, QuantisedMatrix>,
}

/// A quantised matrix, in blocks.
#[derive(Clone, Debug)]
pub struct QuantisedMatrix {
    /// The type of the blocks.
    pub kind: TensorType,
    /// Outputs and inputs.
    pub shape: [usize; 2],
    /// The input that belongs to each column of the blocks; none where they are in order (GPTQ's act order).
    pub order: Option<Arc<[u32]>>,
    /// The number of bytes in blocks.
    pub bytes: u64,
    /// The offset in the file of blocks.
    offset: u64,
}

enum FoundMatrix<'a> {
    Integers(Box<IntegerMatrix<'a>>),
    Floats(Fp8Matrix<'a>),
}

impl<'a> FoundMatrix<'a> {
    fn of(weights: &'a MappedWeights, stem: &str, format: &QuantisedFormat) -> Result<Option<Self>, QuantisedError> {
        Ok(match format {
            QuantisedFormat::Fp8 { block } => Fp8Matrix::find(weights, stem, *block)?.map(Self::Floats),
            _ => IntegerMatrix::find(weights, stem, format)?.map(Box::new).map(Self::Integers),
        })
    }

    fn kind(&self) -> TensorType {
        match self {
            Self::Integers(matrix) => matrix.kind(),
            Self::Floats(_) => TensorType::F8_E4M3,
        }
    }

    fn shape(&self) -> [usize; 2] {
        match self {
            Self::Integers(matrix) => [matrix.rows(), matrix.columns()],
            Self::Floats(matrix) => [matrix.rows, matrix.columns],
        }
    }

    fn order(&self) -> Option<&[u32]> {
        match self {
            Self::Integers(matrix) => matrix.column_order(),
            Self::Floats(_) => None,
        }
    }

    fn write_rows(&self, kind: TensorType, rows: Range<usize>, into: &mut [u8]) -> Result<(), QuantisedError> {
        match self {
            Self::Integers(matrix) => matrix.write_rows(kind, rows, into),
            Self::Floats(matrix) => {
                matrix.write_rows(rows, into);
                Ok(())
            }
        }
    }
}

impl QuantisedModel {
    /// Finds and checks all quantised matrices.
    pub fn new(weights: MappedWeights, format: QuantisedFormat) -> Result<Self, QuantisedError> {
        let mut stems: Vec<_> = weights
            .index()
            .iter()
            .filter_map(|(name, entry)| {
                let [first, second, third, ..] = PARTS;
                let (stem, part) = name.rsplit_once('.')?;
                [first, second, third].contains(&part).then(|| (entry.file.index(), entry.range.start, stem.to_owned()))
            })
            .collect();
        stems.sort_unstable();
        let mut matrices = BTreeMap::new();
        let mut end = 0_u64;
        for (.., stem) in stems {
            let name = format!("{stem}.weight");
            if matrices.contains_key(&name) {
                continue;
            }
            let Some(found) = FoundMatrix::of(&weights, &stem, &format)? else { continue };
            let (kind, shape) = (found.kind(), found.shape());
            let elements = shape.iter().try_fold(1_u64, |all, length| all.checked_mul(*length as u64));
            let unusable = || QuantisedError::Unusable { name: stem.clone(), why: format!("its shape is {shape:?}") };
            let bytes = elements.filter(|all| *all > 0).and_then(|all| kind.bytes_of(all)).ok_or_else(unusable)?;
            let offset = end;
            end = offset
                .checked_add(bytes)
                .and_then(|end| end.checked_next_multiple_of(PAGE as u64))
                .ok_or_else(unusable)?;
            let order = found.order().map(Arc::from);
            matrices.insert(name, QuantisedMatrix { kind, shape, order, bytes, offset });
        }
        Ok(Self { weights, format, matrices })
    }

    /// The files.
    pub fn weights(&self) -> &MappedWeights {
        &self.weights
    }

    /// The quantised matrix of a name (`model.layers.0.mlp.up_proj.weight`); none where it is stored plainly.
    pub fn get(&self, name: &str) -> Option<&QuantisedMatrix> {
        self.matrices.get(name)
    }

    /// The place of a quantised matrix in the file of blocks, whose number is given.
    pub fn extent(&self, name: &str, file: usize) -> Option<Extent> {
        self.get(name).map(|matrix| Extent { file, offset: matrix.offset, len: matrix.bytes })
    }

    /// The places of the tensors that a quantised matrix is made of.
    pub fn stored(&self, name: &str) -> Vec<Extent> {
        let stem = stem(name);
        let entry = |part: &&str| {
            let entry = self.weights.index().get(&format!("{stem}.{part}"))?;
            Some(Extent { file: entry.file.index(), offset: entry.range.start, len: entry.bytes() })
        };
        PARTS.iter().filter_map(entry).collect()
    }

    /// Writes the blocks of some rows. `into` has exactly their bytes.
    pub fn write_rows(&self, name: &str, rows: Range<usize>, into: &mut [u8]) -> Result<(), QuantisedError> {
        let missing = || QuantisedError::Missing(name.to_owned());
        let matrix = self.get(name).ok_or_else(missing)?;
        let found = FoundMatrix::of(&self.weights, stem(name), &self.format)?.ok_or_else(missing)?;
        found.write_rows(matrix.kind, rows, into)
    }

    /// Reads from the file of blocks. Bytes between matrices and behind the last one are not changed.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), QuantisedError> {
        let end = offset.saturating_add(into.len() as u64);
        for (name, matrix) in &self.matrices {
            let (from, to) = (matrix.offset.max(offset), (matrix.offset + matrix.bytes).min(end));
            if from >= to {
                continue;
            }
            let row_bytes = matrix.bytes / (matrix.shape[0] as u64).max(1);
            let (first, last) = ((from - matrix.offset) / row_bytes, (to - matrix.offset).div_ceil(row_bytes));
            // The piece may begin and end inside of rows.
            let mut rows = vec![0; ((last - first) * row_bytes) as usize];
            self.write_rows(name, first as usize..last as usize, &mut rows)?;
            let skipped = (from - matrix.offset - first * row_bytes) as usize;
            let place = (from - offset) as usize..(to - offset) as usize;
            if let (Some(into), Some(bytes)) = (into.get_mut(place.clone()), rows.get(skipped..skipped + place.len())) {
                into.copy_from_slice(bytes);
            }
        }
        Ok(())
    }
}

/// The bytes that a tensor of a safetensors file takes at most in memory, where its matrix is in blocks: with a scale
/// and an offset for 32 integers, which has two parts for those of 8 bits, or a factor for 64 elements of FP8.
pub fn bytes_in_blocks(name: &str, dtype: Option<Dtype>, bytes: u64) -> u64 {
    let part = name.rsplit('.').next().unwrap_or_default();
    match (part, dtype) {
        ("qweight" | "weight_packed", Some(Dtype::I32)) => bytes.saturating_add(bytes / 4),
        ("weight", Some(Dtype::I8)) => bytes.saturating_add(bytes / 5),
        ("weight", Some(Dtype::F8E4M3)) => bytes.saturating_add(bytes / 16),
        _ => bytes,
    }
}

fn stem(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_take_no_more_than_is_said_before_they_are_made() {
        for (name, dtype, kind, packed) in [
            ("a.qweight", Dtype::I32, TensorType::Q4_1, 16),
            ("a.weight_packed", Dtype::I32, TensorType::Q8_0, 32),
            ("a.weight", Dtype::I8, TensorType::Q8_0, 32),
            ("a.weight", Dtype::I8, TensorType::I8_AFFINE, 32),
            ("a.qweight", Dtype::I32, TensorType::I8_AFFINE, 32),
            ("a.weight", Dtype::F8E4M3, TensorType::F8_E4M3, 64),
        ] {
            let most = bytes_in_blocks(name, Some(dtype), packed * 1_000);
            assert!(kind.block_bytes() * 1_000 <= most, "{name} as {kind}: {most}");
        }
        assert_eq!(bytes_in_blocks("a.weight", Some(Dtype::BF16), 32), 32);
    }
}
