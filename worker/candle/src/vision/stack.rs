//! The layers of a tower. Rows are the patches of several images, or the tokens of several texts, one behind the other,
//! without padding.

use std::ops::Range;

use candle_core::{Result as CandleResult, Tensor};

use super::tower_spec::StackSpec;
use crate::encoder::attend::{ScoreBiases, Sight, attend};
use crate::error::ModelError;
use crate::layers::linear::{Bias, Linear};
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::Norm;
use crate::spec::{Activation, NormKind, NormSpec};

/// A tensor's name and shape.
pub(crate) type TowerPart = (String, Vec<usize>);

/// The layers of a tower with their weights.
pub(crate) struct TowerStack {
    layers: Vec<TowerLayer>,
    heads: usize,
}

struct TowerLayer {
    attention_norm: Norm,
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    norm: Norm,
    mlp: TowerMlp,
}

/// Two products with an activation between them.
pub(crate) struct TowerMlp {
    up: Linear,
    down: Linear,
    activation: Activation,
}

/// The rows of its own text or image that a row sees.
#[derive(Clone, Copy)]
pub(crate) enum RowsInSight<'a> {
    All,
    /// Those that numbers added to scores leave, `[heads, longest, longest]`.
    Biased(&'a Tensor),
    /// The same for each text by itself.
    EachBiased(&'a [Tensor]),
}

impl StackSpec {
    pub(crate) fn norm(&self) -> NormSpec {
        NormSpec { kind: NormKind::LayerWithBias, eps: self.eps }
    }

    /// Every tensor of the layers with its shape.
    pub(crate) fn parts(&self, prefix: &str) -> Vec<TowerPart> {
        let mut parts = Vec::new();
        for layer in 0..self.layers {
            let path = format!("{prefix}encoder.layers.{layer}");
            parts.extend(norm_parts(&format!("{path}.layer_norm1"), self.hidden));
            for name in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                parts.extend(linear_parts(&format!("{path}.self_attn.{name}"), [self.hidden; 2]));
            }
            parts.extend(norm_parts(&format!("{path}.layer_norm2"), self.hidden));
            parts.extend(self.mlp_parts(&format!("{path}.mlp")));
        }
        parts
    }

    pub(crate) fn mlp_parts(&self, path: &str) -> Vec<TowerPart> {
        let mut parts = linear_parts(&format!("{path}.fc1"), [self.inner, self.hidden]);
        parts.extend(linear_parts(&format!("{path}.fc2"), [self.hidden, self.inner]));
        parts
    }
}

/// A product's tensors.
pub(crate) fn linear_parts(path: &str, [outs, ins]: [usize; 2]) -> Vec<TowerPart> {
    vec![(format!("{path}.weight"), vec![outs, ins]), (format!("{path}.bias"), vec![outs])]
}

/// A norm's tensors.
pub(crate) fn norm_parts(path: &str, width: usize) -> Vec<TowerPart> {
    ["weight", "bias"].map(|part| (format!("{path}.{part}"), vec![width])).into()
}

impl TowerStack {
    /// Reads the layers `PREFIXencoder.layers.N`.
    pub(crate) fn read(parts: &mut dyn NamedWeights, spec: &StackSpec, prefix: &str) -> Result<Self, ModelError> {
        let layer = |at| TowerLayer::read(parts, spec, &format!("{prefix}encoder.layers.{at}"));
        let layers = (0..spec.layers).map(layer).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { layers, heads: spec.heads })
    }

    /// `[rows, hidden]` → `[rows, hidden]`, through so many layers. The ranges are the rows of each text or image.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        ranges: &[Range<usize>],
        seen: RowsInSight<'_>,
        layers: usize,
    ) -> CandleResult<Tensor> {
        let mut x = x.clone();
        for layer in self.layers.iter().take(layers) {
            x = layer.forward(&x, ranges, seen, self.heads)?;
        }
        Ok(x)
    }

    pub(crate) fn len(&self) -> usize {
        self.layers.len()
    }
}

impl TowerLayer {
    fn read(parts: &mut dyn NamedWeights, spec: &StackSpec, path: &str) -> Result<Self, ModelError> {
        let mut linear = |name: &str| Linear::read(parts, &format!("{path}.self_attn.{name}"), Bias::With);
        let (query, key, value, out) = (linear("q_proj")?, linear("k_proj")?, linear("v_proj")?, linear("out_proj")?);
        Ok(Self {
            attention_norm: Norm::read(parts, &format!("{path}.layer_norm1"), spec.norm())?,
            query,
            key,
            value,
            out,
            norm: Norm::read(parts, &format!("{path}.layer_norm2"), spec.norm())?,
            mlp: TowerMlp::read(parts, spec, &format!("{path}.mlp"))?,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        ranges: &[Range<usize>],
        seen: RowsInSight<'_>,
        heads: usize,
    ) -> CandleResult<Tensor> {
        let [query, key, value] =
            Linear::forward_all([&self.query, &self.key, &self.value], &self.attention_norm.forward(x)?)?;
        let rows = [&query, &key, &value];
        let of = |rows: [&Tensor; 3], ranges: &[Range<usize>], biases: Option<&Tensor>| {
            let biases = biases.map(ScoreBiases::OfPairs);
            attend(rows, ranges, &Sight { heads, biases, slopes: None, farthest: None })
        };
        let mixed = match seen {
            RowsInSight::All => of(rows, ranges, None)?,
            RowsInSight::Biased(biases) => of(rows, ranges, Some(biases))?,
            RowsInSight::EachBiased(all) => {
                let one = |(range, biases): (&Range<usize>, &Tensor)| {
                    let part = |rows: &Tensor| rows.narrow(0, range.start, range.len())?.contiguous();
                    let rows = [part(&query)?, part(&key)?, part(&value)?];
                    of(rows.each_ref(), std::slice::from_ref(&(0..range.len())), Some(biases))
                };
                Tensor::cat(&ranges.iter().zip(all).map(one).collect::<CandleResult<Vec<_>>>()?, 0)?
            }
        };
        let x = (x + self.out.forward(&mixed)?)?;
        &x + self.mlp.forward(&self.norm.forward(&x)?)?
    }
}

impl TowerMlp {
    /// Reads `PATH.fc1` and `PATH.fc2`.
    pub(crate) fn read(parts: &mut dyn NamedWeights, spec: &StackSpec, path: &str) -> Result<Self, ModelError> {
        Ok(Self {
            up: Linear::read(parts, &format!("{path}.fc1"), Bias::With)?,
            down: Linear::read(parts, &format!("{path}.fc2"), Bias::With)?,
            activation: spec.activation,
        })
    }

    /// `[rows, hidden]` → `[rows, hidden]`.
    pub(crate) fn forward(&self, x: &Tensor) -> CandleResult<Tensor> {
        self.down.forward(&self.activation.in_place(self.up.forward(x)?)?)
    }
}
