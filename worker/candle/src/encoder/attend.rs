//! Attention of an encoder on the CPU: one head of one text at a time, shared among cores. Keys are turned over, so
//! that all loops are over numbers that lie side by side.

use std::ops::Range;

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use model_boss_kernels::exp;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::matrix::tensor_products::contiguous;

/// Attention of each text's rows to all of the same text. Queries, keys and values are `[tokens, heads * dim]`.
pub(crate) struct AttendTexts<'a> {
    pub(crate) texts: &'a [Range<usize>],
    pub(crate) heads: usize,
    /// Biases of scores, `[heads, longest, longest]`.
    pub(crate) biases: Option<&'a Tensor>,
    /// The farthest token that another sees, on both sides; all of the text's without.
    pub(crate) farthest: Option<usize>,
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
        let dim = width / self.heads;
        let biases = match self.biases {
            Some(biases) => Some((biases.flatten_all()?.to_vec1::<f32>()?, biases.dim(2)?)),
            None => None,
        };
        let arch = Arch::new();
        let items: Vec<(&Range<usize>, usize)> =
            self.texts.iter().flat_map(|text| (0..self.heads).map(move |head| (text, head))).collect();
        let of_head = |(text, head): &(&Range<usize>, usize)| {
            let all = text.start * width..text.end * width;
            let biases = biases.as_ref().map(|(all, longest)| (&all[head * longest * longest..], *longest));
            let rows = [query, key, value].map(|numbers| &numbers[all.clone()]);
            let farthest = self.farthest.unwrap_or(usize::MAX);
            arch.dispatch(AttendHead { rows, width, first: head * dim, dim, biases, farthest })
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
    /// The head's biases, and numbers from one row of them to the next.
    biases: Option<(&'a [f32], usize)>,
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
                Some((biases, stride)) => scores.copy_from_slice(&biases[token * stride..][seen.clone()]),
                None => scores.fill(0.0),
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
