//! Attention of an encoder. On the CPU one head of one text is computed at a time, shared among cores. Keys are turned
//! over there, so that all loops are over numbers that lie side by side.

use std::ops::Range;

use candle_core::{CpuStorage, CustomOp3, DType, Layout, Result, Shape, Storage, Tensor, bail};
use model_boss_kernels::exp;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::matrix::tensor_products::contiguous;

/// The tokens of its text that a token sees, and how.
#[derive(Clone, Copy)]
pub(crate) struct Sight<'a> {
    pub(crate) heads: usize,
    /// Biases of scores by distance, `[heads, 2 * longest - 1]`: of a token that is `longest - 1` in front first.
    pub(crate) biases: Option<&'a Tensor>,
    /// The loss of scores for each token of distance, by the head.
    pub(crate) slopes: Option<&'a [f32]>,
    /// The farthest token that another sees, on both sides; all of the text's without.
    pub(crate) farthest: Option<usize>,
}

/// Attention of each text's tokens to those of the same text, `[tokens, heads * dim]`.
pub(crate) fn attend(rows: [&Tensor; 3], texts: &[Range<usize>], sight: &Sight<'_>) -> Result<Tensor> {
    let [query, key, value] = rows;
    let Sight { heads, biases, slopes, farthest } = *sight;
    if query.device().is_cpu() {
        return query.apply_op3_no_bwd(key, value, &AttendTexts { texts, sight: *sight });
    }
    let width = query.dim(1)?;
    let dim = width / heads;
    let scale = 1.0 / (dim as f64).sqrt();
    let mut all = Vec::with_capacity(texts.len());
    for text in texts {
        let count = text.len();
        let of_heads =
            |x: &Tensor| x.narrow(0, text.start, count)?.reshape((count, heads, dim))?.transpose(0, 1)?.contiguous();
        let mut scores = (of_heads(query)? * scale)?.matmul(&of_heads(key)?.t()?)?;
        if let Some(biases) = biases {
            let same = biases.dim(1)? / 2;
            let places = (0..count).flat_map(|from| (0..count).map(move |to| (same + to - from) as u32));
            let places = Tensor::from_vec(places.collect::<Vec<u32>>(), count * count, query.device())?;
            scores = (scores + biases.index_select(&places, 1)?.reshape((heads, count, count))?)?;
        }
        // Numbers of the distance between two tokens, of each pair.
        let by_distance = |of: &dyn Fn(usize) -> f32| {
            let pairs = (0..count).flat_map(|from| (0..count).map(move |to| from.abs_diff(to)));
            let numbers: Vec<f32> = pairs.map(of).collect();
            Tensor::from_vec(numbers, (1, count, count), query.device())
        };
        if let Some(slopes) = slopes {
            let slopes = Tensor::new(slopes, query.device())?.reshape((heads, 1, 1))?;
            let lost = by_distance(&|distance| distance as f32)?.broadcast_mul(&slopes)?;
            scores = (scores.to_dtype(DType::F32)? - lost)?.to_dtype(query.dtype())?;
        }
        if let Some(farthest) = farthest.filter(|farthest| *farthest < count) {
            let mask = by_distance(&|distance| if distance > farthest { f32::NEG_INFINITY } else { 0.0 })?;
            scores = scores.broadcast_add(&mask.to_dtype(scores.dtype())?)?;
        }
        let mixed = candle_nn::ops::softmax_last_dim(&scores)?.matmul(&of_heads(value)?)?;
        all.push(mixed.transpose(0, 1)?.reshape((count, width))?);
    }
    Tensor::cat(&all, 0)
}

/// The same on the CPU.
struct AttendTexts<'a> {
    texts: &'a [Range<usize>],
    sight: Sight<'a>,
}

impl CustomOp3 for AttendTexts<'_> {
    fn name(&self) -> &'static str {
        "attend-texts"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let [query, key, value] = [contiguous(s1, l1)?, contiguous(s2, l2)?, contiguous(s3, l3)?];
        let width = l1.shape().dims2()?.1;
        let Sight { heads, biases, slopes, farthest } = self.sight;
        let dim = width / heads;
        let biases = biases.map(Tensor::storage_and_layout);
        let biases: Option<&[f32]> = match &biases {
            Some((stored, layout)) => match &**stored {
                Storage::Cpu(stored) => Some(contiguous(stored, layout)?),
                _ => bail!("biases by distance are not in the memory of the CPU"),
            },
            None => None,
        };
        let arch = Arch::new();
        let items: Vec<(&Range<usize>, usize)> =
            self.texts.iter().flat_map(|text| (0..heads).map(move |head| (text, head))).collect();
        let of_head = |(text, head): &(&Range<usize>, usize)| {
            let all = text.start * width..text.end * width;
            let biases = biases.map(|all| &all[head * (all.len() / heads)..][..all.len() / heads]);
            let rows = [query, key, value].map(|numbers| &numbers[all.clone()]);
            let (slope, farthest) = (slopes.map(|slopes| slopes[*head]), farthest.unwrap_or(usize::MAX));
            arch.dispatch(AttendHead { rows, width, first: head * dim, dim, biases, slope, farthest })
        };
        let mixed: Vec<Vec<f32>> = items.par_iter().map(of_head).collect();
        let mut out = vec![0.0; query.len()];
        for ((text, head), mixed) in items.iter().zip(mixed) {
            for (row, numbers) in mixed.chunks_exact(dim).enumerate() {
                let at = (text.start + row) * width + head * dim;
                out[at..at + dim].copy_from_slice(numbers);
            }
        }
        Ok((CpuStorage::F32(out), l1.shape().clone()))
    }
}

/// One head of one text.
struct AttendHead<'a> {
    /// The text's queries, keys and values.
    rows: [&'a [f32]; 3],
    width: usize,
    /// The head's first column.
    first: usize,
    dim: usize,
    /// The head's biases. In the middle is that of a token and itself.
    biases: Option<&'a [f32]>,
    /// The loss of scores for each token of distance.
    slope: Option<f32>,
    farthest: usize,
}

impl WithSimd for AttendHead<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Vec<f32> {
        let [query, key, value] = self.rows;
        let (dim, count) = (self.dim, query.len() / self.width);
        let scale = 1.0 / (dim as f32).sqrt();
        let mut keys = vec![0.0_f32; dim * count];
        for (token, row) in key.chunks_exact(self.width).enumerate() {
            for (d, number) in row[self.first..self.first + dim].iter().enumerate() {
                keys[d * count + token] = number * scale;
            }
        }
        let (mut scores, mut mixed) = (vec![0.0_f32; count], vec![0.0_f32; count * dim]);
        for (token, (row, out)) in query.chunks_exact(self.width).zip(mixed.chunks_exact_mut(dim)).enumerate() {
            let seen =
                token.saturating_sub(self.farthest)..token.saturating_add(self.farthest).saturating_add(1).min(count);
            let scores = &mut scores[seen.clone()];
            match self.biases {
                Some(biases) => {
                    let first = biases.len() / 2 + seen.start - token;
                    scores.copy_from_slice(&biases[first..first + seen.len()]);
                }
                None => scores.fill(0.0),
            }
            if let Some(slope) = self.slope {
                let lost = seen.clone().map(|other| slope * token.abs_diff(other) as f32);
                scores.iter_mut().zip(lost).for_each(|(score, lost)| *score -= lost);
            }
            for (number, keys) in row[self.first..self.first + dim].iter().zip(keys.chunks_exact(count)) {
                let keys = &keys[seen.clone()];
                scores.iter_mut().zip(keys).for_each(|(score, key)| *score = number.mul_add(*key, *score));
            }
            let largest = scores.iter().fold(f32::NEG_INFINITY, |largest, score| largest.max(*score));
            scores.iter_mut().for_each(|score| *score = exp(*score - largest));
            let sum: f32 = scores.iter().sum();
            for (weight, row) in scores.iter().zip(value.chunks_exact(self.width).skip(seen.start)) {
                let value = &row[self.first..self.first + dim];
                out.iter_mut().zip(value).for_each(|(out, value)| *out = weight.mul_add(*value, *out));
            }
            out.iter_mut().for_each(|out| *out /= sum);
        }
        mixed
    }
}
