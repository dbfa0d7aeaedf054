//! A tower that reads texts. CLIP's tokens see those before them, and the row of the last one is the text's. SigLIP's
//! texts are filled up to one length, and the row of the last place is the text's.

use std::ops::Range;

use candle_core::{DType, Result as CandleResult, Tensor};

use super::stack::{RowsInSight, TowerPart, TowerStack, linear_parts, norm_parts};
use super::text_files::TextFill;
use super::tower_spec::{TextTowerSpec, TowerKind};
use crate::device;
use crate::error::ModelError;
use crate::layers::linear::{Bias, Linear};
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::Norm;
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;

/// A tower with its weights.
pub(crate) struct TextTower {
    spec: TextTowerSpec,
    target: WeightTarget,
    words: Matrix,
    /// `[positions, hidden]`.
    positions: Tensor,
    stack: TowerStack,
    norm: Norm,
    /// SigLIP's last product.
    head: Option<Linear>,
    /// Numbers that are added to scores so that tokens see those before them; of CLIP.
    before: Option<Tensor>,
    fill: TextFill,
}

impl TextTowerSpec {
    /// Every tensor of the tower with its shape.
    pub(crate) fn parts(&self, prefix: &str) -> Vec<TowerPart> {
        let hidden = self.stack.hidden;
        let named = |name: &str| format!("{prefix}{name}");
        let mut parts = vec![
            (named("embeddings.token_embedding.weight"), vec![self.vocabulary, hidden]),
            (named("embeddings.position_embedding.weight"), vec![self.positions, hidden]),
        ];
        parts.extend(self.stack.parts(prefix));
        parts.extend(norm_parts(&named("final_layer_norm"), hidden));
        if self.kind != TowerKind::Clip {
            parts.extend(linear_parts(&named("head"), [self.width, hidden]));
        }
        parts
    }
}

impl TextTower {
    /// Reads the tensors with this prefix.
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        spec: &TextTowerSpec,
        target: &WeightTarget,
        (prefix, fill): (&str, TextFill),
    ) -> Result<Self, ModelError> {
        let clip = spec.kind == TowerKind::Clip;
        let named = |name: &str| format!("{prefix}{name}");
        let before = if clip { Some(before(spec, target)) } else { None };
        Ok(Self {
            spec: *spec,
            target: target.clone(),
            words: parts.matrix(&named("embeddings.token_embedding.weight"))?,
            positions: parts.tensor(&named("embeddings.position_embedding.weight"))?,
            stack: TowerStack::read(parts, &spec.stack, prefix)?,
            norm: Norm::read(parts, &named("final_layer_norm"), spec.stack.norm())?,
            head: if clip { None } else { Some(Linear::read(parts, &named("head"), Bias::With)?) },
            before: before.transpose().map_err(|error| ModelError::Device(device::failure(&error)))?,
            fill,
        })
    }

    /// The one row of each text, `[texts, hidden]`, or SigLIP's vector.
    pub(crate) fn pooled(&self, texts: &[&[u32]]) -> CandleResult<Tensor> {
        let filled: Vec<Vec<u32>> = texts.iter().map(|text| self.filled(text)).collect();
        let (mut ranges, mut end) = (Vec::<Range<usize>>::with_capacity(texts.len()), 0);
        for text in &filled {
            ranges.push(end..end + text.len());
            end += text.len();
        }
        let all: Vec<u32> = filled.concat();
        let places: Vec<u32> = filled.iter().flat_map(|text| (0..).take(text.len())).collect();
        let places = Tensor::from_vec(places, all.len(), &self.target.device)?;
        let x = (self.words.rows(&all, &self.target)? + self.positions.index_select(&places, 0)?)?;
        let hidden_fill = self.spec.kind != TowerKind::Clip && self.fill.unseen;
        let hidden_fill = hidden_fill && texts.iter().zip(&filled).any(|(text, filled)| text.len() < filled.len());
        let each = match hidden_fill {
            true => texts.iter().map(|text| self.unseen(text.len())).collect::<CandleResult<Vec<_>>>()?,
            false => Vec::new(),
        };
        let seen = match &self.before {
            Some(before) => RowsInSight::Biased(before),
            None if hidden_fill => RowsInSight::EachBiased(&each),
            None => RowsInSight::All,
        };
        let x = self.stack.forward(&x, &ranges, seen, self.stack.len())?;
        let rows = ranges.iter().zip(&filled).map(|(range, text)| (range.start + self.place_of(text)) as u32);
        let rows = Tensor::from_vec(rows.collect::<Vec<_>>(), texts.len(), &self.target.device)?;
        let x = self.norm.forward(&x.index_select(&rows, 0)?)?;
        self.head.as_ref().map_or_else(|| Ok(x.clone()), |head| head.forward(&x))
    }

    /// A text of the length that the model wants.
    fn filled(&self, text: &[u32]) -> Vec<u32> {
        if self.spec.kind == TowerKind::Clip {
            return text.to_vec();
        }
        let fill = vec![self.fill.token; self.fill.length.saturating_sub(text.len())];
        if self.fill.in_front { [&fill, text].concat() } else { [text, &fill].concat() }
    }

    /// The place of the row that is the text's.
    fn place_of(&self, text: &[u32]) -> usize {
        match (self.spec.kind, self.spec.end) {
            (TowerKind::Clip, Some(end)) => text.iter().position(|token| *token == end).unwrap_or(0),
            (TowerKind::Clip, None) => {
                let greatest = text.iter().max();
                text.iter().position(|token| Some(token) == greatest).unwrap_or(0)
            }
            _ => text.len() - 1,
        }
    }

    /// Numbers that are added to scores of a text with so many tokens of its own, so that the others are not seen.
    fn unseen(&self, own: usize) -> CandleResult<Tensor> {
        let length = self.fill.length.max(own);
        let own = if self.fill.in_front { length - own..length } else { 0..own };
        let row = (0..length).map(|at| if own.contains(&at) { 0.0 } else { f32::NEG_INFINITY });
        let row = Tensor::from_vec(row.collect::<Vec<f32>>(), (1, 1, length), &self.target.device)?;
        row.to_dtype(self.target.dtype)?.broadcast_as((self.spec.stack.heads, length, length))?.contiguous()
    }
}

/// Minus infinity for all tokens behind each, `[heads, positions, positions]`.
fn before(spec: &TextTowerSpec, target: &WeightTarget) -> CandleResult<Tensor> {
    let count = spec.positions;
    let of = |from: usize| (0..count).map(move |to| if to > from { f32::NEG_INFINITY } else { 0.0 });
    let one = Tensor::from_vec((0..count).flat_map(of).collect::<Vec<f32>>(), (1, count, count), &target.device)?;
    let one = one.to_dtype(if target.device.is_cpu() { DType::F32 } else { target.dtype })?;
    one.broadcast_as((spec.stack.heads, count, count))?.contiguous()
}
