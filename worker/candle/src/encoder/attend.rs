//! Attention of an encoder: each text's tokens see those of the same text.

use std::ops::Range;

use candle_core::{CpuStorage, CustomOp3, DType, Layout, Result, Shape, Storage, Tensor, bail};
use model_boss_kernels::{TextBiases, WholeTexts};

use crate::matrix::tensor_products::contiguous;

/// The tokens of its text that a token sees, and how.
#[derive(Clone, Copy)]
pub(crate) struct Sight<'a> {
    pub(crate) heads: usize,
    pub(crate) biases: Option<ScoreBiases<'a>>,
    /// The loss of scores for each token of distance, by the head.
    pub(crate) slopes: Option<&'a [f32]>,
    /// The farthest token that another sees, on both sides; all of the text's without.
    pub(crate) farthest: Option<usize>,
}

/// Attention of the rows of each text to rows of another one, `[tokens, heads * dim]`.
pub(crate) fn attend_across(
    rows: [&Tensor; 3],
    texts: &[Range<usize>],
    sources: &[Range<usize>],
    heads: usize,
) -> Result<Tensor> {
    let [query, key, value] = rows;
    let sight = Sight { heads, biases: None, slopes: None, farthest: None };
    if texts.len() != sources.len() {
        bail!("{} texts see rows of {} others", texts.len(), sources.len());
    }
    if query.device().is_cpu() {
        return query.apply_op3_no_bwd(key, value, &AttendTexts { texts, sources: Some(sources), sight });
    }
    let width = query.dim(1)?;
    let dim = width / heads;
    let scale = 1.0 / (dim as f64).sqrt();
    let mut all = Vec::with_capacity(texts.len());
    for (text, source) in texts.iter().zip(sources) {
        let of_heads = |x: &Tensor, rows: &Range<usize>| {
            x.narrow(0, rows.start, rows.len())?.reshape((rows.len(), heads, dim))?.transpose(0, 1)?.contiguous()
        };
        let scores = (of_heads(query, text)? * scale)?.matmul(&of_heads(key, source)?.t()?)?;
        let mixed = candle_nn::ops::softmax_last_dim(&scores)?.matmul(&of_heads(value, source)?)?;
        all.push(mixed.transpose(0, 1)?.reshape((text.len(), width))?);
    }
    Tensor::cat(&all, 0)
}

/// Numbers that are added to scores, for texts of up to `longest` tokens.
#[derive(Clone, Copy)]
pub(crate) enum ScoreBiases<'a> {
    /// By distance, `[heads, 2 * longest - 1]`: of a token that is `longest - 1` in front first.
    ByDistance(&'a Tensor),
    /// Of each pair of tokens, `[heads, longest, longest]`.
    OfPairs(&'a Tensor),
}

/// Attention of each text's tokens to those of the same text, `[tokens, heads * dim]`.
pub(crate) fn attend(rows: [&Tensor; 3], texts: &[Range<usize>], sight: &Sight<'_>) -> Result<Tensor> {
    let [query, key, value] = rows;
    let Sight { heads, biases, slopes, farthest } = *sight;
    if query.device().is_cpu() {
        return query.apply_op3_no_bwd(key, value, &AttendTexts { texts, sources: None, sight: *sight });
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
        match biases {
            Some(ScoreBiases::ByDistance(biases)) => {
                let same = biases.dim(1)? / 2;
                let places = (0..count).flat_map(|from| (0..count).map(move |to| (same + to - from) as u32));
                let places = Tensor::from_vec(places.collect::<Vec<u32>>(), count * count, query.device())?;
                scores = (scores + biases.index_select(&places, 1)?.reshape((heads, count, count))?)?;
            }
            Some(ScoreBiases::OfPairs(biases)) => {
                scores = (scores + biases.narrow(1, 0, count)?.narrow(2, 0, count)?)?;
            }
            None => {}
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
    sources: Option<&'a [Range<usize>]>,
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
        let behind = |ranges: &[Range<usize>]| ranges.iter().map(|range| range.end).max().unwrap_or(0) * width;
        if behind(self.sources.unwrap_or(self.texts)) > key.len().min(value.len()) || behind(self.texts) > query.len() {
            bail!("texts reach behind the rows of queries, keys or values");
        }
        let Sight { heads, biases, slopes, farthest } = self.sight;
        let table = biases.map(|biases| match biases {
            ScoreBiases::ByDistance(table) | ScoreBiases::OfPairs(table) => table.storage_and_layout(),
        });
        let numbers: &[f32] = match &table {
            Some((stored, layout)) => match &**stored {
                Storage::Cpu(stored) => contiguous(stored, layout)?,
                _ => bail!("biases of scores are not in the memory of the CPU"),
            },
            None => &[],
        };
        let biases = match biases {
            Some(ScoreBiases::ByDistance(_)) => Some(TextBiases::ByDistance(numbers)),
            Some(ScoreBiases::OfPairs(table)) => Some(TextBiases::OfPairs(numbers, table.dim(2)?)),
            None => None,
        };
        let whole = WholeTexts { texts: self.texts, sources: self.sources, heads, biases, slopes, farthest };
        let out = whole.attend([query, key, value], width);
        Ok((CpuStorage::F32(out), l1.shape().clone()))
    }
}
