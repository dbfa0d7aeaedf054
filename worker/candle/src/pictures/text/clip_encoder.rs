//! CLIP's encoder of texts (Radford et al., 2021, arXiv 2103.00020): tokens see those before them.

use candle_core::{Result as CandleResult, Tensor};
use serde_json::Value;

use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::norm::Norm;
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;
use crate::pictures::layers::{ComponentFields, PlaneWeights, misfit};
use crate::speech::weights::SpeechWeights;
use crate::vision::stack::{RowsInSight, TowerStack};
use crate::vision::tower_spec::{TextTowerSpec, TowerKind};

/// The sizes of an encoder.
#[derive(Clone, Copy, Debug)]
pub(in crate::pictures) struct ClipSpec {
    tower: TextTowerSpec,
    /// Numbers of a text's vector, of encoders that make one.
    projection: Option<usize>,
}

/// An encoder with its weights.
pub(in crate::pictures) struct ClipEncoder {
    spec: ClipSpec,
    words: Matrix,
    positions: Tensor,
    stack: TowerStack,
    norm: Norm,
    projection: Option<Linear>,
    /// Minus infinity for all tokens behind each, `[heads, positions, positions]`.
    before: Tensor,
    target: WeightTarget,
}

/// A text in rows.
pub(in crate::pictures) struct ClipText {
    /// `[tokens, hidden]`.
    pub(in crate::pictures) rows: Tensor,
    /// `[1, width]`: the row at the text's end behind all layers, and its product where the encoder has one.
    pub(in crate::pictures) pooled: Tensor,
}

/// The layer whose rows are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pictures) enum ClipLayer {
    /// So many before the last one, behind the last norm.
    Normed(usize),
    /// So many before the last one, as they are.
    Plain(usize),
}

impl ClipSpec {
    pub(in crate::pictures) fn from_config(component: &str, config: &Value) -> Result<Self, ModelError> {
        let fields = ComponentFields::new(component, config);
        let Some(object) = config.as_object() else { return fields.bad("its configuration is no object") };
        let tower = TextTowerSpec::from_config(TowerKind::Clip, object).map_err(|error| misfit(component, error))?;
        let names = fields.names("architectures", &[])?;
        let projects = names.iter().any(|name| name == "CLIPTextModelWithProjection");
        let projection = if projects { Some(fields.size("projection_dim", 512)?) } else { None };
        Ok(Self { tower, projection })
    }

    pub(in crate::pictures) fn width(&self) -> usize {
        self.tower.stack.hidden
    }

    /// Numbers of the text's vector.
    pub(in crate::pictures) fn pooled_width(&self) -> usize {
        self.projection.unwrap_or(self.tower.stack.hidden)
    }

    pub(in crate::pictures) fn vocabulary(&self) -> usize {
        self.tower.vocabulary
    }

    pub(in crate::pictures) fn positions(&self) -> usize {
        self.tower.positions
    }
}

impl ClipEncoder {
    pub(in crate::pictures) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        spec: ClipSpec,
        target: &WeightTarget,
    ) -> Result<Self, ModelError> {
        let tower = spec.tower;
        let hidden = tower.stack.hidden;
        let prefixed = weights.has("text_model.embeddings.token_embedding.weight");
        let prefix = if prefixed { "text_model." } else { "" };
        let named = |name: &str| format!("{prefix}{name}");
        let words = weights.rows(&named("embeddings.token_embedding.weight"), [tower.vocabulary, hidden])?;
        let positions = named("embeddings.position_embedding.weight");
        let positions = weights.tensor(&positions, &[tower.positions, hidden])?;
        for (name, shape) in tower.stack.parts(prefix) {
            let stored = weights.reader.files().get(&name)?.shape.clone();
            if stored != shape {
                let what = format!("has the shape {stored:?}, config.json makes it {shape:?}");
                return Err(ModelError::Tensor { name, what });
            }
        }
        let stack = TowerStack::read(weights.reader, &tower.stack, prefix)?;
        let norm = weights.norm(&named("final_layer_norm"), hidden, tower.stack.norm())?;
        let projection = match spec.projection {
            Some(width) => Some(weights.panels("text_projection", [width, hidden])?),
            None => None,
        };
        let before = weights.made(before(tower.positions, tower.stack.heads, target))?;
        Ok(Self { spec, words, positions, stack, norm, projection, before, target: target.clone() })
    }

    /// The layers that can be left out at the end.
    pub(in crate::pictures) fn layers(&self) -> usize {
        self.stack.len()
    }

    /// Reads a text, which has as many tokens as there are positions at most.
    pub(in crate::pictures) fn read_text(&self, tokens: &[u32], layer: ClipLayer) -> CandleResult<ClipText> {
        let count = tokens.len();
        if count == 0 || count > self.spec.positions() {
            candle_core::bail!("a text of {count} tokens, and the encoder has {} places", self.spec.positions());
        }
        if let Some(token) = tokens.iter().find(|token| **token as usize >= self.spec.vocabulary()) {
            candle_core::bail!("the token {token} is not one of the encoder's {}", self.spec.vocabulary());
        }
        let x = (self.words.rows(tokens, &self.target)? + self.positions.narrow(0, 0, count)?)?;
        let ranges = std::slice::from_ref(&(0..count)).to_vec();
        let (ClipLayer::Normed(left) | ClipLayer::Plain(left)) = layer;
        let taken = self.stack.len().saturating_sub(left);
        let taken_rows = self.stack.forward(&x, &ranges, RowsInSight::Biased(&self.before), taken)?;
        let last = if taken == self.stack.len() {
            taken_rows.clone()
        } else {
            self.stack.forward(&x, &ranges, RowsInSight::Biased(&self.before), self.stack.len())?
        };
        let place = self.end_of(tokens);
        let pooled = self.norm.forward(&last.narrow(0, place, 1)?.contiguous()?)?;
        let pooled = match &self.projection {
            Some(projection) => projection.forward(&pooled)?,
            None => pooled,
        };
        let rows = match layer {
            ClipLayer::Normed(_) => self.norm.forward(&taken_rows)?,
            ClipLayer::Plain(_) => taken_rows,
        };
        Ok(ClipText { rows, pooled })
    }

    /// The place of the row that is the text's.
    fn end_of(&self, tokens: &[u32]) -> usize {
        let end = self.spec.tower.end.or_else(|| tokens.iter().max().copied());
        tokens.iter().position(|token| Some(*token) == end).unwrap_or(0)
    }
}

fn before(count: usize, heads: usize, target: &WeightTarget) -> CandleResult<Tensor> {
    let of = |from: usize| (0..count).map(move |to| if to > from { f32::NEG_INFINITY } else { 0.0 });
    let one = Tensor::from_vec((0..count).flat_map(of).collect::<Vec<f32>>(), (1, count, count), &target.device)?;
    one.broadcast_as((heads, count, count))?.contiguous()
}
