//! ModernBERT (Warner et al., 2024, arXiv 2412.13663): norms before each part, positions that turn heads, and layers
//! whose tokens see near ones only.

use std::ops::Range;

use candle_core::{Result as CandleResult, Tensor};
use model_boss_engine::{EncoderText, LabelShares};
use serde::Deserialize;

use super::facts::{LabelFacts, activation_of};
use super::family::{EncoderBody, EncoderFamily, EncoderSize, NamedShape};
use super::layers::{Sight, attend};
use super::pooling::{DenseActivation, Pooling};
use super::steps::LoadedStep;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::layers::linear::{Bias, Linear};
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::Norm;
use crate::layers::rope::{Angles, Position, Rope};
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;
use crate::spec::{Activation, ConfigJsonError, NormKind, NormSpec, RopePlanes, RopeScaling, RopeSpec};

const WORDS: &str = "embeddings.tok_embeddings.weight";

/// A model's shape.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ModernSpec {
    size: EncoderSize,
    heads: usize,
    inner: usize,
    activation: Activation,
    norm: NormSpec,
    attention_bias: bool,
    mlp_bias: bool,
    /// Of each layer, whether its tokens see all others.
    sees_all: Vec<bool>,
    /// The farthest token that one sees in the other layers, on both sides.
    farthest: usize,
    /// The bases of wavelengths of layers that see all, and of the others.
    thetas: [f64; 2],
    pooling: Pooling,
    head_activation: Activation,
    head_bias: bool,
    labels: Vec<String>,
    shares: LabelShares,
}

/// The fields of `config.json`.
#[derive(Deserialize)]
struct ModernConfig {
    hidden_size: usize,
    num_attention_heads: usize,
    num_hidden_layers: usize,
    intermediate_size: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    #[serde(default = "gelu")]
    hidden_activation: String,
    #[serde(default = "norm_eps")]
    norm_eps: f64,
    #[serde(default)]
    norm_bias: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    global_attn_every_n_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    #[serde(default = "local_attention")]
    local_attention: usize,
    global_rope_theta: Option<f64>,
    local_rope_theta: Option<f64>,
    rope_parameters: Option<RopeParameters>,
    #[serde(default = "cls")]
    classifier_pooling: String,
    #[serde(default = "gelu")]
    classifier_activation: String,
    #[serde(default)]
    classifier_bias: bool,
    #[serde(flatten)]
    labels: LabelFacts,
}

/// Newer files have the bases by the kind of layer.
#[derive(Deserialize)]
struct RopeParameters {
    full_attention: Option<RopeBase>,
    sliding_attention: Option<RopeBase>,
}

#[derive(Deserialize)]
struct RopeBase {
    rope_theta: Option<f64>,
}

fn gelu() -> String {
    "gelu".to_owned()
}

fn cls() -> String {
    "cls".to_owned()
}

const fn norm_eps() -> f64 {
    1e-5
}

const fn local_attention() -> usize {
    128
}

impl ModernSpec {
    /// Reads the text of a `config.json`.
    pub(super) fn from_config(json: &[u8]) -> Result<Self, ModelError> {
        let bad = |what: String| ModelError::Config(ConfigJsonError::Malformed(what));
        let config: ModernConfig = serde_json::from_slice(json).map_err(|error| bad(error.to_string()))?;
        let (hidden, layers) = (config.hidden_size, config.num_hidden_layers);
        if config.num_attention_heads == 0 || hidden == 0 || !hidden.is_multiple_of(2 * config.num_attention_heads) {
            return Err(bad(format!("{} heads do not divide a width of {hidden}", config.num_attention_heads)));
        }
        let every = config.global_attn_every_n_layers.unwrap_or(3).max(1);
        let sees_all: Vec<bool> = match &config.layer_types {
            None => (0..layers).map(|layer| layer % every == 0).collect(),
            Some(kinds) if kinds.len() == layers => kinds.iter().map(|kind| kind == "full_attention").collect(),
            Some(kinds) => return Err(bad(format!("{} layer_types for {layers} layers", kinds.len()))),
        };
        let base = |of: fn(&RopeParameters) -> Option<&RopeBase>| {
            config.rope_parameters.as_ref().and_then(of).and_then(|base| base.rope_theta)
        };
        let global = base(|all| all.full_attention.as_ref()).or(config.global_rope_theta).unwrap_or(160_000.0);
        let local = base(|all| all.sliding_attention.as_ref()).or(config.local_rope_theta).unwrap_or(10_000.0);
        let pooling = match config.classifier_pooling.as_str() {
            "cls" => Pooling::First,
            "mean" => Pooling::Mean,
            other => return Err(bad(format!("classifier_pooling '{other}' is not known; 'cls' and 'mean' are"))),
        };
        let (labels, shares) = config.labels.read()?;
        Ok(Self {
            size: EncoderSize {
                hidden,
                layers,
                vocabulary: config.vocab_size,
                longest: config.max_position_embeddings,
            },
            heads: config.num_attention_heads,
            inner: config.intermediate_size,
            activation: activation_of(&config.hidden_activation)?,
            norm: NormSpec {
                kind: if config.norm_bias { NormKind::LayerWithBias } else { NormKind::Layer },
                eps: config.norm_eps,
            },
            attention_bias: config.attention_bias,
            mlp_bias: config.mlp_bias,
            sees_all,
            farthest: config.local_attention / 2,
            thetas: [global, local],
            pooling,
            head_activation: activation_of(&config.classifier_activation)?,
            head_bias: config.classifier_bias,
            labels,
            shares,
        })
    }

    fn norm_parts(&self, name: &str) -> Vec<NamedShape> {
        let parts: &[&str] = if self.norm.kind == NormKind::LayerWithBias { &["weight", "bias"] } else { &["weight"] };
        parts.iter().map(|part| (format!("{name}.{part}"), vec![self.size.hidden])).collect()
    }
}

/// A product's tensors.
fn linear_parts(name: String, [outs, ins]: [usize; 2], bias: bool) -> Vec<NamedShape> {
    let bias = bias.then(|| (format!("{name}.bias"), vec![outs]));
    [(format!("{name}.weight"), vec![outs, ins])].into_iter().chain(bias).collect()
}

impl EncoderFamily for ModernSpec {
    fn size(&self) -> EncoderSize {
        self.size
    }

    fn prefix(&self) -> (&'static str, &'static str) {
        ("model.", WORDS)
    }

    fn parts(&self, _files: &ModelFiles, prefix: &str) -> Vec<NamedShape> {
        let EncoderSize { hidden, vocabulary, .. } = self.size;
        let mut parts = vec![(format!("{prefix}{WORDS}"), vec![vocabulary, hidden])];
        parts.extend(self.norm_parts(&format!("{prefix}embeddings.norm")));
        for layer in 0..self.size.layers {
            let path = format!("{prefix}layers.{layer}");
            if layer > 0 {
                parts.extend(self.norm_parts(&format!("{path}.attn_norm")));
            }
            parts.extend(linear_parts(format!("{path}.attn.Wqkv"), [3 * hidden, hidden], self.attention_bias));
            parts.extend(linear_parts(format!("{path}.attn.Wo"), [hidden, hidden], self.attention_bias));
            parts.extend(self.norm_parts(&format!("{path}.mlp_norm")));
            parts.extend(linear_parts(format!("{path}.mlp.Wi"), [2 * self.inner, hidden], self.mlp_bias));
            parts.extend(linear_parts(format!("{path}.mlp.Wo"), [hidden, self.inner], self.mlp_bias));
        }
        parts.extend(self.norm_parts(&format!("{prefix}final_norm")));
        parts
    }

    fn head_parts(&self, _prefix: &str) -> Vec<NamedShape> {
        let hidden = self.size.hidden;
        let mut parts = linear_parts("head.dense".to_owned(), [hidden, hidden], self.head_bias);
        parts.extend(self.norm_parts("head.norm"));
        parts.extend(linear_parts("classifier".to_owned(), [self.labels.len(), hidden], true));
        parts
    }

    fn labels(&self) -> (&[String], LabelShares) {
        (&self.labels, self.shares)
    }

    fn classifier_pooling(&self) -> Pooling {
        self.pooling
    }

    fn read(
        &self,
        reader: &mut WeightReader<'_>,
        _longest: usize,
        target: &WeightTarget,
        prefix: &str,
    ) -> Result<Box<dyn EncoderBody>, ModelError> {
        let layers = (0..self.size.layers)
            .map(|layer| ModernLayer::read(reader, self, &format!("{prefix}layers.{layer}"), layer))
            .collect::<Result<Vec<_>, _>>()?;
        let rope = |theta: f64| {
            let width = self.size.hidden / self.heads;
            Rope::new(&RopeSpec { planes: RopePlanes::Halves, width, theta, scaling: RopeScaling::None })
        };
        Ok(Box::new(ModernBody {
            words: reader.matrix(&format!("{prefix}{WORDS}"))?,
            norm: Norm::read(reader, &format!("{prefix}embeddings.norm"), self.norm)?,
            last: Norm::read(reader, &format!("{prefix}final_norm"), self.norm)?,
            ropes: self.thetas.map(rope),
            target: target.clone(),
            layers,
        }))
    }

    fn read_head(&self, reader: &mut WeightReader<'_>, _prefix: &str) -> Result<Vec<LoadedStep>, ModelError> {
        let dense = Linear::read(reader, "head.dense", Bias::from(self.head_bias))?;
        let norm = Norm::read(reader, "head.norm", self.norm)?;
        let labels = Linear::read(reader, "classifier", Bias::With)?;
        Ok(vec![
            LoadedStep::Dense(dense, DenseActivation::Of(self.head_activation)),
            LoadedStep::Norm(norm),
            LoadedStep::Dense(labels, DenseActivation::Identity),
        ])
    }
}

/// Layers with their weights.
struct ModernBody {
    words: Matrix,
    norm: Norm,
    layers: Vec<ModernLayer>,
    last: Norm,
    /// Of layers that see all, and of the others.
    ropes: [Rope; 2],
    target: WeightTarget,
}

struct ModernLayer {
    /// None before the first: the embedding has a norm.
    attention_norm: Option<Norm>,
    /// Queries, keys and values, one behind the other.
    projection: Linear,
    out: Linear,
    norm: Norm,
    /// The part that passes the activation, and behind it the part that is multiplied with it.
    up: Linear,
    down: Linear,
    activation: Activation,
    heads: usize,
    /// None where tokens see all others.
    farthest: Option<usize>,
}

impl ModernLayer {
    fn read(reader: &mut WeightReader<'_>, spec: &ModernSpec, path: &str, layer: usize) -> Result<Self, ModelError> {
        let attention_norm = match layer {
            0 => None,
            _ => Some(Norm::read(reader, &format!("{path}.attn_norm"), spec.norm)?),
        };
        let (attention, mlp) = (Bias::from(spec.attention_bias), Bias::from(spec.mlp_bias));
        Ok(Self {
            attention_norm,
            projection: Linear::read(reader, &format!("{path}.attn.Wqkv"), attention)?,
            out: Linear::read(reader, &format!("{path}.attn.Wo"), attention)?,
            norm: Norm::read(reader, &format!("{path}.mlp_norm"), spec.norm)?,
            up: Linear::read(reader, &format!("{path}.mlp.Wi"), mlp)?,
            down: Linear::read(reader, &format!("{path}.mlp.Wo"), mlp)?,
            activation: spec.activation,
            heads: spec.heads,
            farthest: (!spec.sees_all[layer]).then_some(spec.farthest),
        })
    }

    /// `[tokens, hidden]` → `[tokens, hidden]`.
    fn forward(&self, x: &Tensor, texts: &[Range<usize>], angles: &Angles) -> CandleResult<Tensor> {
        let (tokens, hidden) = x.dims2()?;
        let normed = self.attention_norm.as_ref().map_or_else(|| Ok(x.clone()), |norm| norm.forward(x))?;
        let all = self.projection.forward(&normed)?;
        let part = |at: usize| all.narrow(1, at * hidden, hidden)?.contiguous();
        let turned = |x: &Tensor| angles.rotate(x, self.heads, 0)?.reshape((tokens, hidden));
        let (query, key, value) = (turned(&part(0)?)?, turned(&part(1)?)?, part(2)?);
        let sight = Sight { heads: self.heads, biases: None, farthest: self.farthest };
        let x = (x + self.out.forward(&attend([&query, &key, &value], texts, &sight)?)?)?;
        let both = self.up.forward(&self.norm.forward(&x)?)?;
        let inner = both.dim(1)? / 2;
        let passes = self.activation.forward(&both.narrow(1, 0, inner)?.contiguous()?)?;
        let inner = (passes * both.narrow(1, inner, inner)?.contiguous()?)?;
        x + self.down.forward(&inner)?
    }
}

impl EncoderBody for ModernBody {
    fn rows(&self, texts: &[EncoderText<'_>], ranges: &[Range<usize>]) -> CandleResult<Tensor> {
        let all: Vec<u32> = texts.iter().flat_map(|text| text.tokens).copied().collect();
        let of_text = |text: &EncoderText<'_>| {
            let length = text.tokens.len();
            (0..length).map(move |at| Position { at, length })
        };
        let positions: Vec<Position> = texts.iter().flat_map(of_text).collect();
        let angles = |rope: &Rope| rope.angles(&positions, self.target.dtype, &self.target.device);
        let [of_all, of_near] = [angles(&self.ropes[0])?, angles(&self.ropes[1])?];
        let mut x = self.norm.forward(&self.words.rows(&all, &self.target)?)?;
        for layer in &self.layers {
            x = layer.forward(&x, ranges, if layer.farthest.is_some() { &of_near } else { &of_all })?;
        }
        self.last.forward(&x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_1_modern_layers_see_all_or_near_tokens_as_old_and_new_files_say() {
        let of = |more: &str| {
            let json = format!(
                r#"{{"model_type":"modernbert","hidden_size":24,"num_attention_heads":3,"num_hidden_layers":4,"vocab_size":9,
                "intermediate_size":8,"max_position_embeddings":40{more}}}"#
            );
            ModernSpec::from_config(json.as_bytes())
        };
        let old = of(r#","global_attn_every_n_layers":2,"local_attention":10,"local_rope_theta":5.0"#).unwrap();
        assert_eq!((old.sees_all, old.farthest, old.thetas), (vec![true, false, true, false], 5, [160_000.0, 5.0]));
        let new = of(r#","layer_types":["sliding_attention","full_attention","full_attention","sliding_attention"],
            "rope_parameters":{"full_attention":{"rope_theta":7.0}}"#)
        .unwrap();
        assert_eq!((new.sees_all, new.thetas), (vec![false, true, true, false], [7.0, 10_000.0]));
        for (wrong, said) in [
            (r#","layer_types":["full_attention"]"#, "1 layer_types"),
            (r#","classifier_pooling":"last""#, "'last'"),
            (r#","hidden_activation":"snake""#, "'snake'"),
            (r#","num_labels":0"#, "0 labels"),
        ] {
            assert!(of(wrong).unwrap_err().to_string().contains(said), "{wrong}");
        }
    }
}
