//! One step's plan: the rows of each sequence in the batch, their positions, and the keys that each may see. Knows
//! numbers and masks, no weights.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Result, Tensor};

use crate::layers::kv_shape::KvHome;
use crate::layers::norm::RmsNorm;
use crate::layers::rope::{Angles, Position, Rope};
use crate::spec::{DecoderSpec, Mixer};

/// Elements of attention scores computed at once (64 MiB in f32). A long piece of prompt over a long past goes in
/// tiles.
const LARGEST_SCORES: usize = 1 << 24;

/// A step as layers see it besides its rows.
pub(crate) struct StepContext {
    /// Of each of the decoder's ropes.
    pub(crate) angles: Vec<Angles>,
    pub(crate) spans: Vec<SequenceSpan>,
    /// The kinds of sight that layers have, in the order of each span's tiles.
    sights: Vec<RowSight>,
    /// Keys and values of layers whose others use them, by the layer.
    lent: Mutex<HashMap<usize, LentKeys>>,
}

/// A layer's keys and values of a step's rows, as another layer uses them.
#[derive(Clone)]
pub(crate) struct LentKeys {
    /// `[rows, kv_heads * head_dim]`, before norm and rotation.
    pub(crate) key: Tensor,
    /// `[rows, kv_heads * head_dim]`.
    pub(crate) value: Tensor,
    pub(crate) key_norm: Option<RmsNorm>,
}

/// The part of a step that a sequence has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpanLength {
    /// Tokens that it holds.
    pub(crate) past: usize,
    /// Tokens that it brings.
    pub(crate) new: usize,
    /// Its length, which scalings of ropes go by.
    pub(crate) length: usize,
}

/// The rows of one sequence.
pub(crate) struct SequenceSpan {
    pub(crate) rows: Range<usize>,
    /// Tokens the sequence already holds.
    pub(crate) past: usize,
    /// For each kind of sight. Empty for keys and values in pages, where attention makes its own.
    tiles: Vec<Vec<ScoreTile>>,
}

/// Rows of a span whose scores are computed together.
pub(crate) struct ScoreTile {
    /// Counted within the span.
    pub(crate) rows: Range<usize>,
    /// Keys up to the last one that any row sees.
    pub(crate) keys: usize,
    /// `[rows, keys]` in f32: 0 where a row may look, -∞ elsewhere. `None` when there is nothing to hide, and for
    /// kernels, which know what a row sees.
    pub(crate) mask: Option<Tensor>,
}

impl StepContext {
    /// `dtype` is what the layers compute in, and `home` is where their keys and values are.
    pub(crate) fn new(
        lengths: &[SpanLength],
        shape: &StepShape,
        dtype: DType,
        (device, home): (&Device, KvHome),
    ) -> Result<Self> {
        let positions = positions(lengths);
        let angles = shape.ropes.iter().map(|rope| rope.angles(&positions, dtype, device)).collect::<Result<_>>()?;
        Self::with_angles(lengths, shape, angles, (device, home))
    }

    /// The same with angles that are on the device already.
    pub(crate) fn with_angles(
        lengths: &[SpanLength],
        shape: &StepShape,
        angles: Vec<Angles>,
        (device, home): (&Device, KvHome),
    ) -> Result<Self> {
        let mut spans = Vec::with_capacity(lengths.len());
        let mut first = 0;
        for &SpanLength { past, new, .. } in lengths {
            let of_sight = |sight: &RowSight| tiles(past, new, shape.heads, *sight, (home == KvHome::Tensors, device));
            let tiles = match home {
                KvHome::Pages => Vec::new(),
                KvHome::Tensors | KvHome::Kernels => shape.sights.iter().map(of_sight).collect::<Result<_>>()?,
            };
            spans.push(SequenceSpan { rows: first..first + new, past, tiles });
            first += new;
        }
        Ok(Self { angles, spans, sights: shape.sights.clone(), lent: Mutex::default() })
    }

    /// Keeps a layer's keys and values for others in the step.
    pub(crate) fn lend(&self, layer: usize, keys: LentKeys) {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner).insert(layer, keys);
    }

    /// The keys and values that a layer lent.
    pub(crate) fn borrow(&self, layer: usize) -> Result<LentKeys> {
        let lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner).get(&layer).cloned();
        lent.ok_or_else(|| candle_core::Error::msg(format!("layer {layer} lent no keys on this device")))
    }

    /// A span's tiles for layers with this sight.
    pub(crate) fn tiles<'s>(&self, span: &'s SequenceSpan, sight: RowSight) -> &'s [ScoreTile] {
        let at = self.sights.iter().position(|known| *known == sight);
        at.and_then(|at| span.tiles.get(at)).map_or(&[], Vec::as_slice)
    }
}

/// The properties that all steps of a decoder have.
pub(crate) struct StepShape {
    /// The most query heads of any layer.
    heads: usize,
    ropes: Vec<Rope>,
    sights: Vec<RowSight>,
}

/// The keys that a row sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowSight {
    /// As many, its own included; all without.
    pub(crate) window: Option<usize>,
    /// Whether it sees those behind it too.
    pub(crate) both_ways: bool,
}

impl RowSight {
    /// The keys that the row at a position sees, of so many.
    fn seen(self, at: usize, keys: usize) -> Range<usize> {
        let window = self.window.unwrap_or(usize::MAX);
        let end = if self.both_ways { at.saturating_add(window).min(keys) } else { at + 1 };
        (at + 1).saturating_sub(window)..end
    }
}

impl StepShape {
    pub(crate) fn of(spec: &DecoderSpec) -> Self {
        let mut sights = Vec::new();
        let mut heads = 1;
        for layer in &spec.layers {
            let (count, window, both_ways) = match &layer.mixer {
                Mixer::Attention(attention) | Mixer::Both(attention, _) => {
                    (attention.heads, attention.window, attention.both_ways)
                }
                Mixer::Latent(latent) => (latent.heads, None, false),
                Mixer::ShortConv(_) | Mixer::DeltaNet(_) | Mixer::Mamba(_) | Mixer::None => continue,
            };
            heads = heads.max(count);
            let sight = RowSight { window, both_ways };
            if !sights.contains(&sight) {
                sights.push(sight);
            }
        }
        Self { heads, ropes: spec.ropes.iter().map(Rope::new).collect(), sights }
    }

    /// The numbers of all ropes' angles, one rope behind the other.
    pub(crate) fn turns(&self, lengths: &[SpanLength]) -> Vec<f32> {
        let positions = positions(lengths);
        self.ropes.iter().flat_map(|rope| rope.turns(&positions).concat()).collect()
    }

    /// How many numbers these are for so many rows.
    pub(crate) fn turns_of(&self, rows: usize) -> usize {
        self.ropes.iter().map(|rope| 2 * rows * rope.planes()).sum()
    }

    /// Angles of these numbers, which are on a device: of so many rows in `dtype`.
    pub(crate) fn angles(&self, turns: &Tensor, rows: usize, dtype: DType) -> Result<Vec<Angles>> {
        let mut first = 0;
        let angles = self.ropes.iter().map(|rope| {
            let count = 2 * rows * rope.planes();
            let of_rope = turns.narrow(0, first, count)?.reshape((2, rows, rope.planes()))?;
            first += count;
            rope.angles_of(&of_rope, dtype)
        });
        angles.collect()
    }
}

/// The positions of a step's rows.
fn positions(lengths: &[SpanLength]) -> Vec<Position> {
    let of_span =
        |&SpanLength { past, new, length }: &SpanLength| (past..past + new).map(move |at| Position { at, length });
    lengths.iter().flat_map(of_span).collect()
}

fn tiles(
    past: usize,
    new: usize,
    heads: usize,
    sight: RowSight,
    (masked, device): (bool, &Device),
) -> Result<Vec<ScoreTile>> {
    let height = (LARGEST_SCORES / (heads * (past + new)).max(1)).clamp(1, new.max(1));
    (0..new)
        .step_by(height)
        .map(|first| {
            let rows = first..(first + height).min(new);
            let keys = past + if sight.both_ways { new } else { rows.end };
            let by_window = sight.window.is_some_and(|window| window < keys);
            let hides = if sight.both_ways { by_window } else { masked && (rows.len() > 1 || by_window) };
            let mask = hides.then(|| mask(past, rows.clone(), keys, sight, device)).transpose()?;
            Ok(ScoreTile { rows, keys, mask })
        })
        .collect()
}

fn mask(past: usize, rows: Range<usize>, keys: usize, sight: RowSight, device: &Device) -> Result<Tensor> {
    let shape = (rows.len(), keys);
    let cells = rows.flat_map(|row| {
        let seen = sight.seen(past + row, keys);
        (0..keys).map(move |key| if seen.contains(&key) { 0.0 } else { f32::NEG_INFINITY })
    });
    Tensor::from_vec(cells.collect::<Vec<f32>>(), shape, device)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behind(window: Option<usize>) -> RowSight {
        RowSight { window, both_ways: false }
    }

    #[test]
    fn a_row_sees_its_past_and_itself() {
        let tiles = tiles(2, 3, 4, behind(None), (true, &Device::Cpu)).unwrap();
        assert_eq!(tiles.len(), 1);
        let mask = tiles[0].mask.as_ref().unwrap().to_vec2::<f32>().unwrap();
        let seen: Vec<usize> = mask.iter().map(|row| row.iter().filter(|cell| **cell == 0.0).count()).collect();
        assert_eq!((seen, mask[0].len()), (vec![3, 4, 5], 5));
    }

    #[test]
    fn a_window_hides_what_is_before_it() {
        let tiles = tiles(2, 3, 4, behind(Some(2)), (true, &Device::Cpu)).unwrap();
        let mask = tiles[0].mask.as_ref().unwrap().to_vec2::<f32>().unwrap();
        let first: Vec<Option<usize>> = mask.iter().map(|row| row.iter().position(|cell| *cell == 0.0)).collect();
        assert_eq!(first, [Some(1), Some(2), Some(3)]);
    }

    #[test]
    fn em_1_rows_of_whole_texts_need_a_mask_for_a_window_alone() {
        let of = |window| {
            let sight = RowSight { window, both_ways: true };
            tiles(0, 4, 4, sight, (false, &Device::Cpu)).unwrap().remove(0)
        };
        let near = of(Some(2)).mask.unwrap().to_vec2::<f32>().unwrap();
        let seen: Vec<usize> = near.iter().map(|row| row.iter().filter(|cell| **cell == 0.0).count()).collect();
        assert_eq!(seen, [2, 3, 3, 2]);
        assert!(of(None).mask.is_none() && of(Some(4)).mask.is_none() && of(None).keys == 4);
    }

    #[test]
    fn one_token_needs_no_mask() {
        let tiles = tiles(100, 1, 4, behind(None), (true, &Device::Cpu)).unwrap();
        assert!(tiles.len() == 1 && tiles[0].mask.is_none() && tiles[0].keys == 101);
    }

    #[test]
    fn long_pieces_go_in_tiles_that_cover_them_once() {
        let (past, new, heads) = (3_000, 1_000, 32);
        let tiles = tiles(past, new, heads, behind(None), (true, &Device::Cpu)).unwrap();
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
