//! One step's plan: the rows of each sequence in the batch, their positions, and the keys that each may see. Knows
//! numbers and masks, no weights.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use crate::layers::kv::KvHome;
use crate::layers::rope::{Angles, Rope};

/// Elements of attention scores computed at once (64 MiB in f32). A long piece of prompt over a long past goes in
/// tiles.
const LARGEST_SCORES: usize = 1 << 24;

/// A step as layers see it besides its rows.
pub(crate) struct StepContext {
    pub(crate) angles: Angles,
    pub(crate) spans: Vec<SequenceSpan>,
}

/// The rows of one sequence.
pub(crate) struct SequenceSpan {
    pub(crate) rows: Range<usize>,
    /// Tokens the sequence already holds.
    pub(crate) past: usize,
    /// Empty for keys and values in pages, where attention makes its own.
    pub(crate) tiles: Vec<ScoreTile>,
}

/// Rows of a span whose scores are computed together.
pub(crate) struct ScoreTile {
    /// Counted within the span.
    pub(crate) rows: Range<usize>,
    /// Keys that the last row sees, and so the most any row sees.
    pub(crate) keys: usize,
    /// `[rows, keys]` in f32: 0 where a row may look, -∞ behind its own position. `None` when there is nothing to hide.
    pub(crate) mask: Option<Tensor>,
}

impl StepContext {
    /// `lengths`: per sequence, tokens it holds and tokens it brings. `dtype` is what the layers compute in,
    /// and `home` is where their keys and values are.
    pub(crate) fn new(
        lengths: &[(usize, usize)],
        heads: usize,
        rope: &Rope,
        dtype: DType,
        (device, home): (&Device, KvHome),
    ) -> Result<Self> {
        let mut positions = Vec::new();
        let mut spans = Vec::new();
        for &(past, new) in lengths {
            let first = positions.len();
            positions.extend(past..past + new);
            let tiles = match home {
                KvHome::Pages => Vec::new(),
                KvHome::Tensors => tiles(past, new, heads, device)?,
            };
            spans.push(SequenceSpan { rows: first..first + new, past, tiles });
        }
        Ok(Self { angles: rope.angles(&positions, dtype, device)?, spans })
    }
}

fn tiles(past: usize, new: usize, heads: usize, device: &Device) -> Result<Vec<ScoreTile>> {
    let height = (LARGEST_SCORES / (heads * (past + new)).max(1)).clamp(1, new.max(1));
    (0..new)
        .step_by(height)
        .map(|first| {
            let rows = first..(first + height).min(new);
            let keys = past + rows.end;
            let mask = (rows.len() > 1).then(|| causal_mask(past, rows.clone(), device)).transpose()?;
            Ok(ScoreTile { rows, keys, mask })
        })
        .collect()
}

fn causal_mask(past: usize, rows: Range<usize>, device: &Device) -> Result<Tensor> {
    let keys = past + rows.end;
    let shape = (rows.len(), keys);
    let cells = rows.flat_map(|row| {
        let seen = past + row + 1;
        (0..keys).map(move |key| if key < seen { 0.0 } else { f32::NEG_INFINITY })
    });
    Tensor::from_vec(cells.collect::<Vec<f32>>(), shape, device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_sees_its_past_and_itself() {
        let tiles = tiles(2, 3, 4, &Device::Cpu).unwrap();
        assert_eq!(tiles.len(), 1);
        let mask = tiles[0].mask.as_ref().unwrap().to_vec2::<f32>().unwrap();
        let seen: Vec<usize> = mask.iter().map(|row| row.iter().filter(|cell| **cell == 0.0).count()).collect();
        assert_eq!((seen, mask[0].len()), (vec![3, 4, 5], 5));
    }

    #[test]
    fn one_token_needs_no_mask() {
        let tiles = tiles(100, 1, 4, &Device::Cpu).unwrap();
        assert!(tiles.len() == 1 && tiles[0].mask.is_none() && tiles[0].keys == 101);
    }

    #[test]
    fn long_pieces_go_in_tiles_that_cover_them_once() {
        let (past, new, heads) = (3_000, 1_000, 32);
        let tiles = tiles(past, new, heads, &Device::Cpu).unwrap();
        assert!(tiles.len() > 1);
        let mut next = 0;
        for tile in &tiles {
            assert_eq!(tile.rows.start, next);
            assert_eq!(tile.keys, past + tile.rows.end);
            assert!(tile.rows.len() * tile.keys * heads <= LARGEST_SCORES);
            next = tile.rows.end;
        }
        assert_eq!(next, new);
    }
}
