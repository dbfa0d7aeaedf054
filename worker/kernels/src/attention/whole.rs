//! Attention of whole texts without a cache, as encoders have it: a token sees all tokens of its text, or those near
//! it. Knows slices, no tensors.

use std::ops::Range;

use pulp::NullaryFnOnce;
use rayon::prelude::*;

use super::kernel::{Panel, Product, largest, sum, weights};
use super::product::multiply;
use crate::cores::cores;
use crate::lanes::{Instructions, LANES};

/// Scores that are held at a time: a part of the second cache.
const MOST_SCORES: usize = 32 << 10;

/// Most queries that are multiplied together: a whole number of products' rows.
const TOGETHER: usize = 48;

/// Texts, and what their tokens see.
#[derive(Clone, Copy, Debug)]
pub struct WholeTexts<'a> {
    /// The rows of each text, one behind the other.
    pub texts: &'a [Range<usize>],
    /// The rows of keys and values that each text sees, where they are not its own. No bias counts then.
    pub sources: Option<&'a [Range<usize>]>,
    /// Heads, each of as many columns.
    pub heads: usize,
    /// The numbers that are added to scores.
    pub biases: Option<TextBiases<'a>>,
    /// The loss of scores for each token of distance, by the head.
    pub slopes: Option<&'a [f32]>,
    /// The farthest token that another sees, on both sides; all of the text's without.
    pub farthest: Option<usize>,
}

/// Numbers that are added to scores.
#[derive(Clone, Copy, Debug)]
pub enum TextBiases<'a> {
    /// By distance, `[heads, odd]`: in the middle is that of a token and itself.
    ByDistance(&'a [f32]),
    /// Of each pair of a text's tokens, `[heads, longest, longest]`, and the longest text.
    OfPairs(&'a [f32], usize),
}

impl TextBiases<'_> {
    /// Those of one head's token and all tokens of its text.
    fn of(&self, heads: usize, head: usize, token: usize, count: usize) -> &[f32] {
        let (Self::ByDistance(all) | Self::OfPairs(all, _)) = self;
        let of_head = &all[all.len() / heads * head..][..all.len() / heads];
        match self {
            Self::ByDistance(_) => &of_head[of_head.len() / 2 - token..][..count],
            Self::OfPairs(_, longest) => &of_head[token * longest..][..count],
        }
    }
}

/// Some tokens of one text as queries, and where the mixed values of all heads go.
struct QueryItem<'t, 'o> {
    text: &'t Range<usize>,
    /// The rows of keys and values.
    source: &'t Range<usize>,
    /// The queries, counted from the text's first token.
    queries: Range<usize>,
    /// `[queries, width]`.
    out: &'o mut [f32],
}

impl WholeTexts<'_> {
    /// Attends with queries, keys and values `[tokens, width]`; the result has the same shape.
    pub fn attend(&self, rows: [&[f32]; 3], width: usize) -> Vec<f32> {
        let mut out = vec![0.0; rows[0].len()];
        if width / self.heads.max(1) == 0 {
            return out;
        }
        let instructions = Instructions::current();
        let mut items = self.items(&mut out, width);
        let attend = |item: &mut QueryItem<'_, '_>| self.attend_item(instructions, rows, width, item);
        items.par_iter_mut().with_max_len(1).for_each(attend);
        out
    }

    /// All texts; long ones are divided, so that cores can share them.
    fn items<'o>(&self, mut out: &'o mut [f32], width: usize) -> Vec<QueryItem<'_, 'o>> {
        // Keys and values are laid out anew for each item.
        let most = if cores() == 1 { 8 * TOGETHER } else { TOGETHER };
        let (mut items, mut behind) = (Vec::with_capacity(self.texts.len()), 0);
        for (at, text) in self.texts.iter().enumerate() {
            let source = self.sources.and_then(|sources| sources.get(at)).unwrap_or(text);
            let parts = text.len().div_ceil(most).max(1);
            for part in 0..parts {
                let (first, end) = (text.len() * part / parts, text.len() * (part + 1) / parts);
                let queries = first..end;
                let before = (text.start + first - behind) * width;
                let (here, rest) = out.split_at_mut(before).1.split_at_mut(queries.len() * width);
                behind = text.start + queries.end;
                out = rest;
                items.push(QueryItem { text, source, queries, out: here });
            }
        }
        items
    }

    /// Attends with the queries of one item.
    fn attend_item(
        &self,
        instructions: Instructions,
        [query, key, value]: [&[f32]; 3],
        width: usize,
        item: &mut QueryItem<'_, '_>,
    ) {
        let (count, dim) = (item.source.len(), width / self.heads);
        let (keys_stride, values_stride) = (count.next_multiple_of(LANES), dim.next_multiple_of(LANES));
        let (mut keys, mut values) = (vec![0.0; dim * keys_stride], vec![0.0; count * values_stride]);
        let together = (MOST_SCORES / keys_stride).clamp(6, TOGETHER) / 6 * 6;
        let (mut scores, mut mixed) = (vec![0.0; together * keys_stride], vec![0.0; together * values_stride]);
        for head in 0..self.heads {
            let of_head = item.text.start * width + head * dim;
            let of_source = item.source.start * width + head * dim;
            instructions.run_plain(FillPanels {
                key: &key[of_source..],
                value: &value[of_source..],
                width,
                count,
                dim,
                keys: &mut keys,
                values: &mut values,
            });
            for first in item.queries.clone().step_by(together) {
                let rows = first..item.queries.end.min(first + together);
                let scores = &mut scores[..rows.len() * keys_stride];
                let mixed = &mut mixed[..rows.len() * values_stride];
                self.begin(scores, keys_stride, &rows, (head, count));
                multiply(
                    instructions,
                    Product {
                        rows: rows.len(),
                        depth: dim,
                        width: keys_stride,
                        a: &query[of_head + first * width..],
                        a_stride: width,
                        b: Panel::Floats(&keys),
                        b_stride: keys_stride,
                        c: scores,
                        c_stride: keys_stride,
                    },
                );
                let seen = rows.clone().map(|token| self.seen(token, count)).collect();
                let sums = instructions.run_plain(ScoreWeights { scores, stride: keys_stride, seen });
                mixed.fill(0.0);
                multiply(
                    instructions,
                    Product {
                        rows: rows.len(),
                        depth: count,
                        width: values_stride,
                        a: scores,
                        a_stride: keys_stride,
                        b: Panel::Floats(&values),
                        b_stride: values_stride,
                        c: mixed,
                        c_stride: values_stride,
                    },
                );
                let out = &mut item.out[(first - item.queries.start) * width + head * dim..];
                for ((mixed, sum), out) in mixed.chunks_exact(values_stride).zip(sums).zip(out.chunks_mut(width)) {
                    for (out, number) in out.iter_mut().zip(&mixed[..dim]) {
                        *out = number / sum;
                    }
                }
            }
        }
    }

    /// The tokens that one sees.
    fn seen(&self, token: usize, count: usize) -> Range<usize> {
        if self.sources.is_some() {
            return 0..count;
        }
        let farthest = self.farthest.unwrap_or(count);
        token.saturating_sub(farthest)..count.min(token + farthest + 1)
    }

    /// Scores before keys are multiplied: what distances add.
    fn begin(&self, scores: &mut [f32], stride: usize, rows: &Range<usize>, (head, count): (usize, usize)) {
        let slope = self.slopes.map(|slopes| slopes[head]);
        for (token, scores) in rows.clone().zip(scores.chunks_exact_mut(stride)) {
            match &self.biases {
                Some(biases) => scores[..count].copy_from_slice(biases.of(self.heads, head, token, count)),
                None => scores.fill(0.0),
            }
            if let Some(slope) = slope {
                for (other, score) in scores[..count].iter_mut().enumerate() {
                    *score -= slope * token.abs_diff(other) as f32;
                }
            }
        }
    }
}

/// Fills panels with a head's keys turned over, and its values, of one text.
struct FillPanels<'a> {
    /// From the head's first column of the text's first token on.
    key: &'a [f32],
    value: &'a [f32],
    width: usize,
    count: usize,
    dim: usize,
    /// `[dim, count]` with the factor on scores, rows padded with zeros.
    keys: &'a mut [f32],
    /// `[count, dim]`, rows padded with zeros.
    values: &'a mut [f32],
}

impl NullaryFnOnce for FillPanels<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { key, value, width, count, dim, keys, values } = self;
        let (keys_stride, values_stride) = (count.next_multiple_of(LANES), dim.next_multiple_of(LANES));
        let scale = 1.0 / (dim as f32).sqrt();
        // Few tokens at a time, whose rows stay in the first cache.
        for first in (0..count).step_by(LANES) {
            let here = LANES.min(count - first);
            for (column, keys) in keys.chunks_exact_mut(keys_stride).enumerate() {
                for (token, cell) in keys[first..first + here].iter_mut().enumerate() {
                    *cell = key[(first + token) * width + column] * scale;
                }
            }
        }
        for (token, values) in values.chunks_exact_mut(values_stride).enumerate() {
            values[..dim].copy_from_slice(&value[token * width..][..dim]);
        }
    }
}

/// Makes weights of scores, 0 where a row does not see; returns each row's sum.
struct ScoreWeights<'a> {
    scores: &'a mut [f32],
    stride: usize,
    seen: Vec<Range<usize>>,
}

impl NullaryFnOnce for ScoreWeights<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn call(self) -> Vec<f32> {
        let mut sums = Vec::with_capacity(self.seen.len());
        for (seen, scores) in self.seen.iter().zip(self.scores.chunks_exact_mut(self.stride)) {
            scores[seen.end..].fill(f32::NEG_INFINITY);
            scores[..seen.start].fill(f32::NEG_INFINITY);
            weights(scores, largest(scores, f32::NEG_INFINITY));
            scores[seen.end..].fill(0.0);
            scores[..seen.start].fill(0.0);
            sums.push(sum(scores));
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, salt: u32) -> Vec<f32> {
        let scramble = |i: u32| i.wrapping_mul(2_654_435_761).wrapping_add(salt).wrapping_mul(40_503) >> 16;
        (0..count as u32).map(|i| scramble(i) as f32 / 16_384.0 - 2.0).collect()
    }

    /// In f64, one pair of tokens after another.
    fn plainly(texts: &WholeTexts<'_>, [query, key, value]: [&[f32]; 3], width: usize) -> Vec<f64> {
        let (dim, mut out) = (width / texts.heads, vec![0.0; query.len()]);
        for text in texts.texts {
            for (head, token) in (0..texts.heads).flat_map(|head| text.clone().map(move |token| (head, token))) {
                let column = |row: usize, d: usize| row * width + head * dim + d;
                let farthest = texts.farthest.unwrap_or(usize::MAX);
                let seen: Vec<usize> = text.clone().filter(|other| other.abs_diff(token) <= farthest).collect();
                let score = |other: &usize| {
                    let dot: f64 =
                        (0..dim).map(|d| f64::from(query[column(token, d)]) * f64::from(key[column(*other, d)])).sum();
                    let distance = token.abs_diff(*other) as f64;
                    let lost = texts.slopes.map_or(0.0, |slopes| f64::from(slopes[head]) * distance);
                    let added = texts.biases.map_or(0.0, |biases| {
                        let (token, other) = (token - text.start, other - text.start);
                        f64::from(biases.of(texts.heads, head, token, text.len())[other])
                    });
                    dot / (dim as f64).sqrt() - lost + added
                };
                let weights: Vec<f64> = seen.iter().map(|other| score(other).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for d in 0..dim {
                    let mixed =
                        seen.iter().zip(&weights).map(|(other, weight)| f64::from(value[column(*other, d)]) * weight);
                    out[column(token, d)] = mixed.sum::<f64>() / sum;
                }
            }
        }
        out
    }

    #[test]
    fn em_5_whole_texts_attend_as_defined_whoever_is_beside_them() {
        for (heads, dim) in [(3, 8), (2, 32), (1, 20)] {
            let width = heads * dim;
            let texts = [0..1, 1..8, 8..41, 41..141];
            let rows = [1, 2, 3].map(|salt| numbers(141 * width, salt));
            let rows = [&rows[0][..], &rows[1][..], &rows[2][..]];
            let (biases, slopes) = (numbers(heads * 201, 4), numbers(heads, 5));
            let of_pairs = numbers(heads * 101 * 101, 6);
            let plain = WholeTexts { texts: &texts, sources: None, heads, biases: None, slopes: None, farthest: None };
            for of in [
                plain,
                WholeTexts { biases: Some(TextBiases::ByDistance(&biases)), ..plain },
                WholeTexts { biases: Some(TextBiases::OfPairs(&of_pairs, 101)), ..plain },
                WholeTexts { slopes: Some(&slopes), farthest: Some(5), ..plain },
            ] {
                let all = of.attend(rows, width);
                for (ours, exact) in all.iter().zip(plainly(&of, rows, width)) {
                    assert!((f64::from(*ours) - exact).abs() < 1e-5, "{heads} x {dim}: {ours} {exact}");
                }
                for text in &texts {
                    let part = rows.map(|rows| &rows[text.start * width..text.end * width]);
                    let whole = 0..text.len();
                    let alone = WholeTexts { texts: std::slice::from_ref(&whole), ..of }.attend(part, width);
                    assert_eq!(alone, all[text.start * width..text.end * width], "{text:?}");
                }
            }
        }
    }

    #[test]
    fn rc_25_texts_see_the_rows_of_others() {
        let (heads, width) = (2, 12);
        let (texts, sources) = ([0..5, 5..60], [0..3, 3..20]);
        let (query, key, value) = (numbers(60 * width, 1), numbers(20 * width, 2), numbers(20 * width, 3));
        let of =
            WholeTexts { texts: &texts, sources: Some(&sources), heads, biases: None, slopes: None, farthest: None };
        let ours = of.attend([&query, &key, &value], width);
        let dim = width / heads;
        for (text, source) in texts.iter().zip(&sources) {
            for (head, token) in (0..heads).flat_map(|head| text.clone().map(move |token| (head, token))) {
                let column = |row: usize, d: usize| row * width + head * dim + d;
                let score = |other: usize| {
                    let dot = (0..dim).map(|d| f64::from(query[column(token, d)] * key[column(other, d)])).sum::<f64>();
                    (dot / (dim as f64).sqrt()).exp()
                };
                let sum: f64 = source.clone().map(score).sum();
                for d in 0..dim {
                    let mixed = source.clone().map(|other| score(other) * f64::from(value[column(other, d)]));
                    let exact = mixed.sum::<f64>() / sum;
                    assert!((f64::from(ours[column(token, d)]) - exact).abs() < 1e-5);
                }
            }
        }
    }
}
