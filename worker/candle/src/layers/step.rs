//! One step's plan: the rows of each sequence in the batch, their positions, and the keys that each may see. Knows
//! numbers and masks, no weights.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Result, Tensor};
use model_boss_kernels::SequenceRows;

use crate::adapter::rows::RowAdapters;
use crate::layers::kv_shape::KvHome;
use crate::layers::norm::RmsNorm;
use crate::layers::rope::{Angles, Rope};
use crate::layers::span::{SpanLength, positions};
use crate::spec::{DecoderSpec, Mixer};

/// Elements of attention scores computed at once (64 MiB in f32). A long piece of prompt over a long past goes in
/// tiles.
const LARGEST_SCORES: usize = 1 << 24;

/// A step as layers see it besides its rows.
pub(crate) struct StepContext {
    /// Of each of the decoder's ropes.
    pub(crate) angles: Vec<Angles>,
    pub(crate) spans: Vec<SequenceSpan>,
    /// The adapters of the step's rows.
    pub(crate) adapters: RowAdapters,
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

/// The rows of one sequence.
pub(crate) struct SequenceSpan {
    pub(crate) rows: Range<usize>,
    /// Tokens the sequence already holds.
    pub(crate) past: usize,
    /// Tokens that see each other in both directions, of those that the step brings or reads.
    pub(crate) whole: Vec<Range<usize>>,
    /// For each kind of sight. Empty for keys and values in pages, where attention makes its own.
    tiles: Vec<Vec<ScoreTile>>,
}

impl SequenceSpan {
    /// The rows as attention on the CPU has them.
    pub(crate) fn as_rows(&self) -> SequenceRows {
        SequenceRows { rows: self.rows.clone(), past: self.past, whole: self.whole.clone() }
    }
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
        let positions = positions(lengths, shape.in_grids());
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
        for length in lengths {
            let &SpanLength { past, new, .. } = length;
            let whole = if shape.whole_images { length.images_in().cloned().collect() } else { Vec::new() };
            let rows = SequenceRows { rows: 0..new, past, whole };
            let masked = home == KvHome::Tensors || !rows.whole.is_empty();
            let of_sight = |sight: &RowSight| tiles(&rows, shape.heads, *sight, (masked, device));
            let tiles = match home {
                KvHome::Pages => Vec::new(),
                KvHome::Tensors | KvHome::Kernels => shape.sights.iter().map(of_sight).collect::<Result<_>>()?,
            };
            spans.push(SequenceSpan { rows: first..first + new, past, whole: rows.whole.clone(), tiles });
            first += new;
        }
        let adapters = RowAdapters::default();
        Ok(Self { angles, spans, adapters, sights: shape.sights.clone(), lent: Mutex::default() })
    }

    /// The same for rows with adapters.
    pub(crate) fn adapted(self, adapters: RowAdapters) -> Self {
        Self { adapters, ..self }
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
    /// Whether the places of an image see each other in both directions.
    whole_images: bool,
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
    /// The keys that a token of a sequence sees, of so many.
    fn seen(self, sequence: &SequenceRows, token: usize, keys: usize) -> Range<usize> {
        if !self.both_ways {
            return sequence.seen(token, self.window);
        }
        let window = self.window.unwrap_or(usize::MAX);
        (token + 1).saturating_sub(window)..token.saturating_add(window).min(keys)
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
        let whole_images = spec.whole_images;
        Self { heads, ropes: spec.ropes.iter().map(Rope::new).collect(), sights, whole_images }
    }

    /// Whether positions have rows and columns.
    fn in_grids(&self) -> bool {
        self.ropes.iter().any(Rope::has_axes)
    }

    /// The numbers of all ropes' angles, one rope behind the other.
    pub(crate) fn turns(&self, lengths: &[SpanLength]) -> Vec<f32> {
        let positions = positions(lengths, self.in_grids());
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

fn tiles(
    sequence: &SequenceRows,
    heads: usize,
    sight: RowSight,
    (masked, device): (bool, &Device),
) -> Result<Vec<ScoreTile>> {
    let (past, new) = (sequence.past, sequence.rows.len());
    let height = (LARGEST_SCORES / (heads * (past + new)).max(1)).clamp(1, new.max(1));
    (0..new)
        .step_by(height)
        .map(|first| {
            let rows = first..(first + height).min(new);
            let all = past + new;
            let keys = rows.clone().map(|row| sight.seen(sequence, past + row, all).end).max().unwrap_or(past);
            let by_window = sight.window.is_some_and(|window| window < keys);
            let hides = if sight.both_ways { by_window } else { masked && (rows.len() > 1 || by_window) };
            let mask = hides.then(|| mask(sequence, (rows.clone(), keys), sight, device)).transpose()?;
            Ok(ScoreTile { rows, keys, mask })
        })
        .collect()
}

fn mask(
    sequence: &SequenceRows,
    (rows, keys): (Range<usize>, usize),
    sight: RowSight,
    device: &Device,
) -> Result<Tensor> {
    let shape = (rows.len(), keys);
    let cells = rows.flat_map(|row| {
        let seen = sight.seen(sequence, sequence.past + row, keys);
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

    fn sequence(past: usize, new: usize) -> SequenceRows {
        SequenceRows { rows: 0..new, past, whole: Vec::new() }
    }

    #[test]
    fn em_4_rows_of_an_image_see_all_of_it_and_nothing_behind() {
        let sequence = SequenceRows { whole: std::iter::once(3..6).collect(), ..sequence(2, 6) };
        let seen = |window| {
            let tiles = tiles(&sequence, 4, behind(window), (true, &Device::Cpu)).unwrap();
            let mask = tiles[0].mask.as_ref().unwrap().to_vec2::<f32>().unwrap();
            let ends = |row: &Vec<f32>| {
                let first = row.iter().position(|cell| *cell == 0.0).unwrap();
                (first, row.iter().rposition(|cell| *cell == 0.0).unwrap() + 1)
            };
            mask.iter().map(ends).collect::<Vec<_>>()
        };
        assert_eq!(seen(None), [(0, 3), (0, 6), (0, 6), (0, 6), (0, 7), (0, 8)]);
        assert_eq!(seen(Some(2)), [(1, 3), (2, 6), (3, 6), (4, 6), (5, 7), (6, 8)]);
    }

    #[test]
    fn a_row_sees_its_past_and_itself() {
        let tiles = tiles(&sequence(2, 3), 4, behind(None), (true, &Device::Cpu)).unwrap();
        assert_eq!(tiles.len(), 1);
        let mask = tiles[0].mask.as_ref().unwrap().to_vec2::<f32>().unwrap();
        let seen: Vec<usize> = mask.iter().map(|row| row.iter().filter(|cell| **cell == 0.0).count()).collect();
        assert_eq!((seen, mask[0].len()), (vec![3, 4, 5], 5));
    }

    #[test]
    fn a_window_hides_what_is_before_it() {
        let tiles = tiles(&sequence(2, 3), 4, behind(Some(2)), (true, &Device::Cpu)).unwrap();
        let mask = tiles[0].mask.as_ref().unwrap().to_vec2::<f32>().unwrap();
        let first: Vec<Option<usize>> = mask.iter().map(|row| row.iter().position(|cell| *cell == 0.0)).collect();
        assert_eq!(first, [Some(1), Some(2), Some(3)]);
    }

    #[test]
    fn em_1_rows_of_whole_texts_need_a_mask_for_a_window_alone() {
        let of = |window| {
            let sight = RowSight { window, both_ways: true };
            tiles(&sequence(0, 4), 4, sight, (false, &Device::Cpu)).unwrap().remove(0)
        };
        let near = of(Some(2)).mask.unwrap().to_vec2::<f32>().unwrap();
        let seen: Vec<usize> = near.iter().map(|row| row.iter().filter(|cell| **cell == 0.0).count()).collect();
        assert_eq!(seen, [2, 3, 3, 2]);
        assert!(of(None).mask.is_none() && of(Some(4)).mask.is_none() && of(None).keys == 4);
    }

    #[test]
    fn one_token_needs_no_mask() {
        let tiles = tiles(&sequence(100, 1), 4, behind(None), (true, &Device::Cpu)).unwrap();
        assert!(tiles.len() == 1 && tiles[0].mask.is_none() && tiles[0].keys == 101);
    }

    #[test]
    fn long_pieces_go_in_tiles_that_cover_them_once() {
        let (past, new, heads) = (3_000, 1_000, 32);
        let tiles = tiles(&sequence(past, new), heads, behind(None), (true, &Device::Cpu)).unwrap();
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
