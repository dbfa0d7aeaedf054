//! The inner loops of attention: a product of a few rows with a panel, and the weights of a block of keys. Knows
//! numbers only.
//!
//! Every sum runs in one order, whatever the number of rows, so a row's result does not depend on who shares the call.

use std::ops::Range;

use pulp::NullaryFnOnce;

use crate::exp::exp;

use super::segment::BLOCK;
use crate::attention::element::GROUP;
use crate::lanes::LANES;

/// `c += a b`: `[rows, depth]` by `[depth, width]`, each sum along the depth in its order.
pub(crate) struct Product<'a> {
    pub(crate) rows: usize,
    pub(crate) depth: usize,
    /// A multiple of [`LANES`].
    pub(crate) width: usize,
    pub(crate) a: &'a [f32],
    pub(crate) a_stride: usize,
    pub(crate) b: Panel<'a>,
    pub(crate) b_stride: usize,
    pub(crate) c: &'a mut [f32],
    pub(crate) c_stride: usize,
}

/// The right side of a product.
#[derive(Clone, Copy)]
pub(crate) enum Panel<'a> {
    Floats(&'a [f32]),
    /// f16 as bits.
    Halves(&'a [u16]),
    /// bf16 as bits.
    Brains(&'a [u16]),
    Scaled(ScaledPanel<'a>),
}

/// Integers with scales, each for [`GROUP`] elements one after the other in a row or a column. The product of an
/// integer of 8 bits and an f16 is exact in f32, so the elements are the same numbers however they are widened.
#[derive(Clone, Copy)]
pub(crate) struct ScaledPanel<'a> {
    pub(crate) quants: &'a [i8],
    /// f16 as bits: `[rows / GROUP, width]` or `[rows, width / GROUP]`.
    pub(crate) scales: &'a [u16],
    pub(crate) groups: Groups,
}

/// The direction of a panel's groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Groups {
    /// Elements of a column share a scale, as those of a key do: keys are columns.
    Columns,
    /// Elements of a row share a scale, as those of a value do.
    Rows,
}

impl Panel<'_> {
    /// Elements.
    pub(super) fn len(self) -> usize {
        match self {
            Self::Floats(floats) => floats.len(),
            Self::Halves(bits) | Self::Brains(bits) => bits.len(),
            Self::Scaled(scaled) => scaled.quants.len(),
        }
    }

    /// The first rows of `width` elements. Groups have to lie along rows.
    pub(super) fn first_rows(self, rows: usize, width: usize) -> Self {
        let count = rows * width;
        match self {
            Self::Floats(floats) => Self::Floats(&floats[..count]),
            Self::Halves(bits) => Self::Halves(&bits[..count]),
            Self::Brains(bits) => Self::Brains(&bits[..count]),
            Self::Scaled(ScaledPanel { quants, scales, groups }) => {
                let scales = &scales[..rows * width.div_ceil(GROUP)];
                Self::Scaled(ScaledPanel { quants: &quants[..count], scales, groups })
            }
        }
    }
}

/// A row's softmax so far: `Σ e^(score − largest)` over the keys that were seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RunningSoftmax {
    pub(super) largest: f32,
    pub(super) sum: f32,
}

impl RunningSoftmax {
    /// The state before any key.
    pub(super) const NONE: Self = Self { largest: f32::NEG_INFINITY, sum: 0.0 };

    /// Whether no key was seen.
    fn is_none(self) -> bool {
        self.largest == f32::NEG_INFINITY && self.sum == 0.0
    }
}

/// One block of the online softmax (Milakov and Gimelshein, 2018, arXiv 1805.02867): scores become weights relative to
/// the largest score so far. Values mixed before are scaled to the same.
pub(super) struct SoftmaxBlock<'a> {
    /// `[rows, BLOCK]`: scores on the way in, weights on the way out; 0 for keys that a row does not see.
    pub(super) scores: &'a mut [f32],
    /// `[rows]`: the block's keys that each row sees.
    pub(super) seen: &'a [Range<usize>],
    /// The bound of scores, which the hyperbolic tangent keeps them within.
    pub(super) softcap: Option<f32>,
    pub(super) running: &'a mut [RunningSoftmax],
    /// `[rows, width]`.
    pub(super) mixed: &'a mut [f32],
    pub(super) width: usize,
}

impl NullaryFnOnce for SoftmaxBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { scores, seen, softcap, running, mixed, width } = self;
        let rows = scores.as_chunks_mut::<BLOCK>().0.chunks_mut(LANES).zip(seen.chunks(LANES));
        let states = running.chunks_mut(LANES).zip(mixed.chunks_mut(LANES * width.max(1)));
        for ((scores, seen), (running, mixed)) in rows.zip(states) {
            let mut largest_of = [0.0; LANES];
            for (((scores, seen), running), largest_of) in
                scores.iter_mut().zip(seen).zip(&*running).zip(&mut largest_of)
            {
                *largest_of = if seen.is_empty() { running.largest } else { bounded(scores, seen, softcap, *running) };
            }
            // Of all rows at once: alone, each would wait for its own.
            let mut kept_of = [0.0; LANES];
            for ((kept, running), largest) in kept_of.iter_mut().zip(&*running).zip(&largest_of) {
                *kept = running.largest - largest;
            }
            kept_of.iter_mut().for_each(|kept| *kept = exp(*kept));
            let rows = scores.iter_mut().zip(seen).zip(running).zip(mixed.chunks_exact_mut(width));
            for ((((scores, seen), running), mixed), (largest, kept)) in rows.zip(largest_of.into_iter().zip(kept_of)) {
                if seen.is_empty() {
                    *scores = [0.0; BLOCK];
                    continue;
                }
                weights(scores, largest);
                if *seen != (0..BLOCK) {
                    scores[seen.end..].fill(0.0);
                    scores[..seen.start].fill(0.0);
                }
                let before = running.largest;
                *running = RunningSoftmax { largest, sum: running.sum.mul_add(kept, sum(scores)) };
                if before != largest {
                    mixed.iter_mut().for_each(|mixed| *mixed *= kept);
                }
            }
        }
    }
}

/// Bounds the scores of a row and hides those of keys that it does not see. Returns the largest so far.
#[inline(always)]
fn bounded(scores: &mut [f32; BLOCK], seen: &Range<usize>, softcap: Option<f32>, running: RunningSoftmax) -> f32 {
    if let Some(bound) = softcap {
        within(scores, bound);
    }
    // Filled before and after: with a choice inside of them the loops would not become vector instructions.
    if *seen != (0..BLOCK) {
        scores[seen.end..].fill(f32::NEG_INFINITY);
        scores[..seen.start].fill(f32::NEG_INFINITY);
    }
    largest(scores, running.largest)
}

/// `bound * tanh(score / bound)` (Gemma Team, 2024, arXiv 2408.00118).
#[inline(always)]
fn within(scores: &mut [f32; BLOCK], bound: f32) {
    let twice = 2.0 / bound;
    for score in scores {
        // Of large numbers the quotient is 0 or 2 to the bit, and no number stays none.
        *score = bound * (1.0 - 2.0 / (exp(*score * twice) + 1.0));
    }
}

/// The largest of the scores, a multiple of [`LANES`], and of what came before.
#[inline(always)]
pub(super) fn largest(scores: &[f32], before: f32) -> f32 {
    let mut lanes = [before; LANES];
    for scores in scores.as_chunks::<LANES>().0 {
        for (largest, score) in lanes.iter_mut().zip(scores) {
            *largest = if *score > *largest { *score } else { *largest };
        }
    }
    in_a_tree(lanes, |one, other| if other > one { other } else { one })
}

/// Makes weights of scores.
#[inline(always)]
pub(super) fn weights(scores: &mut [f32], largest: f32) {
    for score in scores {
        *score = exp(*score - largest);
    }
}

/// The sum of weights, a multiple of [`LANES`]: each lane's first, then those in a tree.
#[inline(always)]
pub(super) fn sum(weights: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    for weights in weights.as_chunks::<LANES>().0 {
        lanes = std::array::from_fn(|lane| lanes[lane] + weights[lane]);
    }
    // The compiler would add lane by lane, to save itself the tree's first step.
    in_a_tree(std::hint::black_box(lanes), |one, other| one + other)
}

/// All lanes as one number: halves are joined, until one lane is left.
#[inline(always)]
fn in_a_tree(lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|lane| join(lanes[lane], lanes[lane + 8]));
    let four: [f32; 4] = std::array::from_fn(|lane| join(eight[lane], eight[lane + 4]));
    let two: [f32; 2] = std::array::from_fn(|lane| join(four[lane], four[lane + 2]));
    join(two[0], two[1])
}

/// Adds what a row mixed of later keys to what it mixed of earlier ones.
#[inline(always)]
pub(super) fn merge(total: (&mut [f32], &mut RunningSoftmax), later: (&[f32], RunningSoftmax)) {
    let ((mixed, running), (later, of_later)) = (total, later);
    if of_later.is_none() {
        return;
    }
    if running.is_none() {
        mixed.copy_from_slice(later);
        *running = of_later;
        return;
    }
    let largest = if of_later.largest > running.largest { of_later.largest } else { running.largest };
    let (kept, added) = (exp(running.largest - largest), exp(of_later.largest - largest));
    *running = RunningSoftmax { largest, sum: running.sum * kept + of_later.sum * added };
    for (mixed, later) in mixed.iter_mut().zip(later) {
        *mixed = *mixed * kept + *later * added;
    }
}
