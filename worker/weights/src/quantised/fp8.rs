//! Matrices of FP8 (e4m3) with scales, kept as stored.

use std::ops::Range;

use super::error::QuantisedError;
use super::stored::{FLOATS, PackedTensor, TensorSource, need};
use crate::dtype::Dtype;
use crate::gguf::{F8_BLOCK, F8_FACTOR};

/// A matrix of FP8 elements. An element is its value times the scale of its block.
#[derive(Clone, Debug, PartialEq)]
pub struct Fp8Matrix<'a> {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
    /// Elements, row after row.
    pub values: &'a [u8],
    /// Rows and columns of a block. Those at the borders may be smaller.
    pub block: [usize; 2],
    /// The scales of blocks, a row of blocks after the other.
    pub scales: Vec<f32>,
}

impl<'a> Fp8Matrix<'a> {
    /// Finds the matrix `name` (`model.layers.0.mlp.up_proj`). The answer is none where it is not stored as FP8.
    pub fn find(
        source: &'a dyn TensorSource,
        name: &str,
        block: Option<[usize; 2]>,
    ) -> Result<Option<Self>, QuantisedError> {
        let Some(weight) = source.find(&format!("{name}.weight")).filter(|weight| weight.dtype == Dtype::F8E4M3) else {
            return Ok(None);
        };
        let [rows, columns] = weight.matrix()?;
        // Multiplied with in both cases: the longer name calls it the inverse of the factor that was used to quantise.
        let scales = match source.find(&format!("{name}.weight_scale_inv")) {
            Some(scales) => scales,
            None => need(source, &format!("{name}.weight_scale"))?,
        };
        let block = block_of(&scales, [rows, columns], block)?;
        let wanted = scales.shape.clone();
        let scales = scales.require(&[FLOATS, &[Dtype::F8E8M0]].concat(), "F16, BF16, F32 or F8_E8M0", &wanted)?;
        let scales: Vec<f32> = (0..scales.elements()).map(|at| scales.float(at)).collect();
        if let Some(bad) = scales.iter().find(|scale| !(**scale * F8_FACTOR).is_finite()) {
            return Err(weight.unusable(format!("one of its scales is {bad}")));
        }
        if !columns.is_multiple_of(F8_BLOCK) {
            return Err(weight.unusable(format!("its {columns} inputs are no multiple of {F8_BLOCK}")));
        }
        if block[1] < columns && !block[1].is_multiple_of(F8_BLOCK) {
            return Err(weight.unusable(format!("scales of {} inputs are no multiple of {F8_BLOCK}", block[1])));
        }
        Ok(Some(Self { rows, columns, values: weight.bytes, block, scales }))
    }

    /// Writes some rows as blocks of [`crate::gguf::TensorType::F8_E4M3`]. `into` has exactly their bytes.
    pub fn write_rows(&self, rows: Range<usize>, into: &mut [u8]) {
        let [block_rows, block_columns] = self.block;
        let across = self.columns.div_ceil(block_columns);
        let blocks = rows.flat_map(|row| (0..self.columns).step_by(F8_BLOCK).map(move |column| (row, column)));
        for ((row, column), into) in blocks.zip(into.chunks_exact_mut(size_of::<f32>() + F8_BLOCK)) {
            let scale = self.scales.get(row / block_rows * across + column / block_columns);
            let (head, body) = into.split_at_mut(size_of::<f32>());
            head.copy_from_slice(&(scale.copied().unwrap_or_default() * F8_FACTOR).to_le_bytes());
            let start = row * self.columns + column;
            body.copy_from_slice(self.values.get(start..start + F8_BLOCK).unwrap_or(&[0; F8_BLOCK]));
        }
    }
}

/// The size of the blocks that scales of this shape are for.
fn block_of(
    scales: &PackedTensor<'_>,
    [rows, columns]: [usize; 2],
    block: Option<[usize; 2]>,
) -> Result<[usize; 2], QuantisedError> {
    let [rows, columns] = [rows.max(1), columns.max(1)];
    match (scales.shape.as_slice(), block) {
        ([] | [1] | [1, 1], None) => Ok([rows, columns]),
        ([count], None) | ([count, 1], None) if *count == rows => Ok([1, columns]),
        (found, Some([block_rows, block_columns])) => {
            let wanted = [rows.div_ceil(block_rows), columns.div_ceil(block_columns)];
            if found == wanted {
                return Ok([block_rows, block_columns]);
            }
            Err(QuantisedError::Shape { name: scales.name.clone(), found: found.to_vec(), wanted: wanted.to_vec() })
        }
        (found, None) => {
            Err(QuantisedError::Shape { name: scales.name.clone(), found: found.to_vec(), wanted: vec![rows, 1] })
        }
    }
}
