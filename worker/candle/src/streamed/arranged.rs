//! Bytes of a read in the order of products, and matrices over them.

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;
use model_boss_weights::store::Reads;

use crate::matrix::Matrix;
use crate::streamed::table::MatrixPiece;

/// Rearranges the bytes of a read in place, so that products can use them.
pub(crate) fn arrange(reads: &Reads, pieces: &[MatrixPiece], buffer: &mut [u8], check: bool) -> Result<(), String> {
    for (place, piece) in reads.places().iter().zip(pieces) {
        let bytes = buffer.get_mut(place.clone()).unwrap_or_default();
        // Bytes from an index are arranged already, with their scales in other places. They were checked when the index
        // was written.
        if check && !piece.arranged {
            piece.layout.check(bytes).map_err(|what| format!("tensor '{}' {what}", piece.name))?;
        }
        if !piece.arranged {
            piece.layout.arrange(bytes);
        }
    }
    Ok(())
}

/// The matrices of arranged bytes, by name.
pub(crate) fn matrices(
    reads: &Reads,
    pieces: &[MatrixPiece],
    bytes: &Bytes,
) -> Result<HashMap<String, Matrix>, String> {
    let matrix = |(place, piece): (&Range<usize>, &MatrixPiece)| {
        let kernel = piece.layout.kernel(bytes.slice(place.clone()));
        let kernel = kernel.map_err(|what| format!("tensor '{}' {what}", piece.name))?;
        Ok((piece.name.clone(), Matrix::Stored(kernel)))
    };
    reads.places().iter().zip(pieces).map(matrix).collect()
}
