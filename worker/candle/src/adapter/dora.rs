//! The lengths of an adapted matrix's rows, by which DoRA divides (Liu et al., 2024, arXiv 2402.09353): those of
//! `W + scale B A`, whatever type the model's files have the matrix in.

use model_boss_engine::AdapterError;
use model_boss_kernels::{Sizes, product};
use model_boss_weights::gguf::dequantise;
use rayon::prelude::*;

use super::stored::StoredLowRank;
use crate::files::ModelFiles;

/// Rows that one thread computes at a time.
const ROWS_TOGETHER: usize = 128;

/// The length of each row of the decoder's matrix with this name, once the product is added.
pub(crate) fn lengths(files: &ModelFiles, name: &str, low: &StoredLowRank) -> Result<Vec<f32>, AdapterError> {
    let failed = |what: String| AdapterError::Tensor { name: name.to_owned(), what };
    let (rows, columns) = (low.up.rows, low.down.columns);
    // Columns may be stored in another order than the inputs are in.
    let turned = low.down.turned();
    let inputs = match files.order(name) {
        Some(order) => turned.picked(order.iter().map(|column| *column as usize)),
        None => turned,
    };
    let rank = low.down.rows;
    let firsts: Vec<usize> = (0..rows).step_by(ROWS_TOGETHER).collect();
    let of_rows = |first: &usize| {
        let end = rows.min(first + ROWS_TOGETHER);
        let count = end - first;
        let stored = files.get(name).map_err(|error| failed(error.to_string()))?;
        let kind = stored.kind;
        let part = stored.part(*first..end).ok_or_else(|| failed("has fewer rows than its shape".to_owned()))?;
        let bytes = part.bytes().map_err(|error| failed(error.to_string()))?;
        let mut weights = vec![0.0_f32; count * columns];
        dequantise(kind, &bytes, &mut weights).map_err(|error| failed(error.to_string()))?;
        let up = low.up.values.get(first * rank..end * rank).unwrap_or_default();
        let added = product(up, &inputs.values, Sizes { rows: count, outs: columns, depth: rank });
        let lengths = weights.chunks_exact(columns).zip(added.chunks_exact(columns)).map(|(weights, added)| {
            let square = |(weight, added): (&f32, &f32)| {
                let sum = f64::from(*weight) + low.scale * f64::from(*added);
                sum * sum
            };
            weights.iter().zip(added).map(square).sum::<f64>().sqrt() as f32
        });
        Ok(lengths.collect::<Vec<f32>>())
    };
    let all = firsts.par_iter().map(of_rows).collect::<Result<Vec<_>, AdapterError>>()?;
    Ok(all.concat())
}
