//! The lengths of an adapted matrix's rows, or of an embedding's columns, by which DoRA divides (Liu et al., 2024,
//! arXiv 2402.09353): those of `W + scale B A`, whatever type the model's files have the matrix in.

use std::ops::Range;

use model_boss_engine::AdapterError;
use model_boss_kernels::{Sizes, product};
use model_boss_weights::gguf::dequantise;
use rayon::prelude::*;

use super::stored::{HostMatrix, StoredLowRank};
use crate::files::ModelFiles;

/// Rows that one thread computes at a time.
const ROWS_TOGETHER: usize = 128;

/// The length of each row of the decoder's matrix with this name, once the product is added.
pub(crate) fn row_lengths(files: &ModelFiles, name: &str, low: &StoredLowRank) -> Result<Vec<f32>, AdapterError> {
    // Columns may be stored in another order than the inputs are in.
    let turned = low.down.turned();
    let inputs = match files.order(name) {
        Some(order) => turned.picked(order.iter().map(|column| *column as usize)),
        None => turned,
    };
    let matrix = AdaptedMatrix { files, name, low, rows: &low.up, columns: &inputs };
    let of_rows = |rows: Range<usize>| {
        let squares = matrix.squares(rows)?;
        let columns = matrix.columns.rows;
        Ok(squares.chunks_exact(columns).map(|row| row.iter().sum::<f64>().sqrt() as f32).collect::<Vec<f32>>())
    };
    let all = pieces(low.up.rows).into_par_iter().map(of_rows).collect::<Result<Vec<_>, AdapterError>>()?;
    Ok(all.concat())
}

/// The length of each column of an embedding with this name, once the product is added.
pub(crate) fn column_lengths(files: &ModelFiles, name: &str, low: &StoredLowRank) -> Result<Vec<f32>, AdapterError> {
    let matrix = AdaptedMatrix { files, name, low, rows: &low.down, columns: &low.up };
    let of_rows = |rows: Range<usize>| {
        let mut sums = vec![0.0; matrix.columns.rows];
        for row in matrix.squares(rows)?.chunks_exact(sums.len()) {
            sums.iter_mut().zip(row).for_each(|(sum, square)| *sum += square);
        }
        Ok(sums)
    };
    let all = pieces(low.down.rows).into_par_iter().map(of_rows).collect::<Result<Vec<_>, AdapterError>>()?;
    let column = |at: usize| all.iter().map(|sums| sums[at]).sum::<f64>().sqrt() as f32;
    Ok((0..matrix.columns.rows).map(column).collect())
}

fn pieces(rows: usize) -> Vec<Range<usize>> {
    (0..rows).step_by(ROWS_TOGETHER).map(|first| first..rows.min(first + ROWS_TOGETHER)).collect()
}

/// A matrix of the model's files, and the product that is added to it: of `rows` by `columns`, `[count, rank]` each.
struct AdaptedMatrix<'a> {
    files: &'a ModelFiles,
    name: &'a str,
    low: &'a StoredLowRank,
    rows: &'a HostMatrix,
    columns: &'a HostMatrix,
}

impl AdaptedMatrix<'_> {
    /// The squares of all elements of some rows.
    fn squares(&self, rows: Range<usize>) -> Result<Vec<f64>, AdapterError> {
        let failed = |what: String| AdapterError::Tensor { name: self.name.to_owned(), what };
        let (count, columns, rank) = (rows.len(), self.columns.rows, self.rows.columns);
        let stored = self.files.get(self.name).map_err(|error| failed(error.to_string()))?;
        let kind = stored.kind;
        let part = stored.part(rows.clone()).ok_or_else(|| failed("has fewer rows than its shape".to_owned()))?;
        let bytes = part.bytes().map_err(|error| failed(error.to_string()))?;
        let mut weights = vec![0.0_f32; count * columns];
        dequantise(kind, &bytes, &mut weights).map_err(|error| failed(error.to_string()))?;
        let narrow = self.rows.values.get(rows.start * rank..rows.end * rank).unwrap_or_default();
        let added = product(narrow, &self.columns.values, Sizes { rows: count, outs: columns, depth: rank });
        let square = |(weight, added): (&f32, &f32)| {
            let sum = f64::from(*weight) + self.low.scale * f64::from(*added);
            sum * sum
        };
        Ok(weights.iter().zip(&added).map(square).collect())
    }
}
