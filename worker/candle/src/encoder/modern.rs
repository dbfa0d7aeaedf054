//! ModernBERT (Warner et al., 2024, arXiv 2412.13663): norms before each part, positions that turn heads, and layers
//! whose tokens see near ones only. From `config.json` and from GGUF.

use std::ops::Range;

use candle_core::{Result as CandleResult, Tensor};
use model_boss_engine::{EncoderText, LabelShares};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::attend::{Sight, attend};
use super::family::{EncoderBody, EncoderFamily, EncoderSize, Pause, linear, read_head};
use super::keys::{Labels, activation_of, even_share};
use super::labels::LabelFacts;
use super::parts::{EncoderPart, PartFinder};
use super::pooling::{DenseActivation, Pooling};
use super::row_parts::in_parts;
use super::spec::Biases;
use super::steps::LoadedStep;
use crate::device;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::layers::linear::Linear;
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::Norm;
use crate::layers::rope::{Angles, Position, Rope};
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;
use crate::spec::check::{MOST_LAYERS, inconsistent};
use crate::spec::fact_error::FactError;
use crate::spec::facts::{ConfigFacts, ModelFacts, RopeDefaults, activation};
use crate::spec::{Activation, ConfigJsonError, NormKind, NormSpec, RopeSpec};

const WORDS: &[&str] = &["embeddings.tok_embeddings", "token_embd"];

/// A model's shape.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ModernSpec {
    size: EncoderSize,
    heads: usize,
    inner: usize,
    activation: Activation,
    norm: NormSpec,
    biases: Biases,
    /// Of each layer, whether its tokens see all others.
    sees_all: Vec<bool>,
    /// The farthest token that one sees in the other layers, on both sides.
    farthest: usize,
    /// The ropes of layers that see all, and of the others.
    ropes: [RopeSpec; 2],
    pooling: Pooling,
    head_activation: Activation,
    /// Whether a classifier's first product has a bias; in GGUF where the file has it.
    head_bias: Option<bool>,
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
    #[serde(default = "cls")]
    classifier_pooling: String,
    #[serde(default = "gelu")]
    classifier_activation: String,
    #[serde(default)]
    classifier_bias: bool,
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
        if layers > MOST_LAYERS {
            return Err(bad(format!("{layers} layers")));
        }
        if config.num_attention_heads == 0 || hidden == 0 || !hidden.is_multiple_of(2 * config.num_attention_heads) {
            return Err(bad(format!("{} heads do not divide a width of {hidden}", config.num_attention_heads)));
        }
        let every = config.global_attn_every_n_layers.unwrap_or(3).max(1);
        let sees_all: Vec<bool> = match &config.layer_types {
            None => (0..layers).map(|layer| layer % every == 0).collect(),
            Some(kinds) if kinds.len() == layers => kinds
                .iter()
                .map(|kind| match kind.as_str() {
                    "full_attention" => Ok(true),
                    "sliding_attention" => Ok(false),
                    other => Err(bad(format!("the layer type '{}' is not known", other.escape_debug()))),
                })
                .collect::<Result<_, _>>()?,
            Some(kinds) => return Err(bad(format!("{} layer_types for {layers} layers", kinds.len()))),
        };
        let ropes = config.ropes(json)?;
        let pooling = match config.classifier_pooling.as_str() {
            "cls" => Pooling::First,
            "mean" => Pooling::Mean,
            other => return Err(bad(format!("classifier_pooling '{other}' is not known; 'cls' and 'mean' are"))),
        };
        let (labels, shares) = LabelFacts::read(json)?;
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
            biases: Biases::Of {
                inputs: config.attention_bias,
                out: config.attention_bias,
                up: config.mlp_bias,
                down: config.mlp_bias,
            },
            sees_all,
            farthest: config.local_attention / 2,
            ropes,
            pooling,
            head_activation: activation_of(&config.classifier_activation)?,
            head_bias: Some(config.classifier_bias),
            labels,
            shares,
        })
    }

    /// Reads the metadata of a GGUF file.
    pub(super) fn from_gguf(facts: &ModelFacts<'_>, (labels, shares): Labels) -> Result<Self, FactError> {
        let number = |key: &str| facts.number("", key)?.ok_or_else(|| facts.missing(key));
        let (hidden, heads, layers) =
            (number("embedding_length")?, number("attention.head_count")?, number("block_count")?);
        let head_dim = even_share(hidden, heads)?;
        if head_dim == 0 || head_dim % 2 == 1 || layers > MOST_LAYERS {
            return Err(inconsistent(format!("{layers} layers of {heads} heads in a width of {hidden}")));
        }
        let window = facts.number("", "attention.sliding_window")?.unwrap_or(0);
        let listed = facts.numbers("", "attention.sliding_window_pattern")?;
        let sees_all: Vec<bool> = match listed {
            _ if window == 0 => vec![true; layers],
            Some(sliding) if sliding.len() == layers => sliding.iter().map(|sliding| *sliding == 0).collect(),
            Some(sliding) => return Err(inconsistent(format!("a pattern of {} for {layers} layers", sliding.len()))),
            None => {
                let every = facts.number("", "attention.sliding_window_pattern")?.unwrap_or(3).max(1);
                (0..layers).map(|layer| layer % every == 0).collect()
            }
        };
        let context = number("context_length")?;
        let of_all = facts.rope(&RopeDefaults::usual(head_dim, context))?;
        let near = RopeDefaults { theta: of_all.theta, ..RopeDefaults::usual(head_dim, context) };
        let of_near = facts.rope(&RopeDefaults { layer_type: Some("sliding_attention"), ..near })?;
        Ok(Self {
            size: EncoderSize {
                hidden,
                layers,
                vocabulary: facts.gguf_rows("token_embd.weight").unwrap_or(0),
                longest: context,
            },
            heads,
            inner: number("feed_forward_length")?,
            activation: match facts.gguf_text("hidden_activation")? {
                Some(name) => activation(name)?,
                None => Activation::GeluErf,
            },
            norm: NormSpec {
                kind: if facts.gguf_has("output_norm.bias") { NormKind::LayerWithBias } else { NormKind::Layer },
                eps: facts.float("", "attention.layer_norm_epsilon")?.unwrap_or(1e-5),
            },
            biases: Biases::AsStored,
            sees_all,
            farthest: window / 2,
            ropes: whole_heads([of_all, of_near], head_dim)?,
            pooling: match facts.number("", "classifier.pooling_type")? {
                Some(2) => Pooling::First,
                _ => Pooling::Mean,
            },
            head_activation: Activation::GeluErf,
            head_bias: None,
            labels,
            shares,
        })
    }
}

impl ModernConfig {
    /// The ropes of layers that see all, and of the others. Older files have their bases only, newer ones a table for
    /// each kind.
    fn ropes(&self, json: &[u8]) -> Result<[RopeSpec; 2], ModelError> {
        let malformed = |error: serde_json::Error| ConfigJsonError::Malformed(error.to_string());
        let fields: Map<String, Value> = serde_json::from_slice(json).map_err(malformed)?;
        let facts = ConfigFacts::plain(fields);
        let head_dim = self.hidden_size / self.num_attention_heads;
        let read = || -> Result<[RopeSpec; 2], FactError> {
            let parameters = facts.table("rope_parameters")?.filter(|table| !table.is_empty());
            let scaling = facts.table("rope_scaling")?.filter(|table| !table.is_empty());
            if let Some(table) = parameters {
                let has_kinds = table.get("full_attention").or(table.get("sliding_attention")).is_some();
                if scaling.is_some() || !has_kinds {
                    let what = "rope_parameters of ModernBERT beside rope_scaling, or not by the kind of layer";
                    return Err(FactError::Unsupported(what.to_owned()));
                }
            }
            let facts = ModelFacts::Config(facts);
            let of = |kind, theta: Option<f64>, usual: f64| {
                let defaults = RopeDefaults::usual(head_dim, self.max_position_embeddings);
                facts.rope(&RopeDefaults { theta: theta.unwrap_or(usual), layer_type: Some(kind), ..defaults })
            };
            let of_all = of("full_attention", self.global_rope_theta, 160_000.0)?;
            whole_heads([of_all, of("sliding_attention", self.local_rope_theta, 10_000.0)?], head_dim)
        };
        read().map_err(|error| ModelError::Config(error.into()))
    }
}

/// The same ropes, if they turn whole heads.
fn whole_heads(ropes: [RopeSpec; 2], head_dim: usize) -> Result<[RopeSpec; 2], FactError> {
    match ropes.iter().find(|rope| rope.width != head_dim) {
        Some(rope) => Err(FactError::Unsupported(format!("{} of a head's {head_dim} elements rotated", rope.width))),
        None => Ok(ropes),
    }
}

impl EncoderFamily for ModernSpec {
    fn size(&self) -> EncoderSize {
        self.size
    }

    fn parts(&self, files: &ModelFiles) -> Vec<EncoderPart> {
        let mut finder = PartFinder::new(files, WORDS);
        let (EncoderSize { hidden, vocabulary, .. }, kind) = (self.size, self.norm.kind);
        finder.linear("words", &finder.path("", WORDS), [vocabulary, hidden], false);
        finder.norm("norm", &finder.path("", &["embeddings.norm", "token_embd_norm"]), hidden, kind);
        finder.norm("last", &finder.path("", &["final_norm", "output_norm"]), hidden, kind);
        let layers = if finder.known("blk.0.", &["attn_output"]).is_some() { "blk." } else { "layers." };
        for layer in 0..self.size.layers {
            let before = format!("{layers}{layer}.");
            let named = |part: &str| format!("layer.{layer}.{part}");
            let attention_norm = finder.path(&before, &["attn_norm"]);
            if layer > 0 {
                finder.norm(&named("attention_norm"), &attention_norm, hidden, kind);
            }
            let norm = finder.path(&before, &["mlp_norm", "ffn_norm"]);
            finder.norm(&named("norm"), &norm, hidden, kind);
            let inner = self.inner;
            for (part, names, shape) in [
                ("projection", ["attn.Wqkv", "attn_qkv"], [3 * hidden, hidden]),
                ("out", ["attn.Wo", "attn_output"], [hidden, hidden]),
                ("up", ["mlp.Wi", "ffn_up"], [2 * inner, hidden]),
                ("down", ["mlp.Wo", "ffn_down"], [hidden, inner]),
            ] {
                let path = finder.path(&before, &names);
                let bias = match self.biases {
                    Biases::AsStored => finder.has_bias(&path),
                    Biases::Of { inputs, .. } if part == "projection" || part == "out" => inputs,
                    Biases::Of { up, .. } => up,
                };
                finder.linear(&named(part), &path, shape, bias);
            }
        }
        finder.found
    }

    fn head_parts(&self, files: &ModelFiles) -> Vec<EncoderPart> {
        let mut finder = PartFinder::new(files, WORDS);
        let (hidden, gguf) = (self.size.hidden, files.is_gguf());
        let [dense, norm, labels] =
            if gguf { ["cls", "cls.norm", "cls.output"] } else { ["head.dense", "head.norm", "classifier"] };
        let bias = self.head_bias.unwrap_or_else(|| finder.has_bias(dense));
        finder.linear("head.dense", dense, [hidden, hidden], bias);
        finder.norm("head.norm", norm, hidden, self.norm.kind);
        let bias = !gguf || finder.has_bias(labels);
        finder.linear("head.labels", labels, [self.labels.len(), hidden], bias);
        finder.found
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
    ) -> Result<Box<dyn EncoderBody>, ModelError> {
        let failed = |error: candle_core::Error| ModelError::Device(device::failure(&error));
        let layers =
            (0..self.size.layers).map(|layer| ModernLayer::read(reader, self, layer)).collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(ModernBody {
            words: reader.matrix("words.weight")?.apart().map_err(failed)?,
            norm: Norm::read(reader, "norm", self.norm)?,
            last: Norm::read(reader, "last", self.norm)?,
            ropes: [Rope::new(&self.ropes[0]), Rope::new(&self.ropes[1])],
            target: target.clone(),
            layers,
        }))
    }

    fn read_head(&self, reader: &mut WeightReader<'_>) -> Result<Vec<LoadedStep>, ModelError> {
        read_head(reader, DenseActivation::Of(self.head_activation), self.norm)
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
    fn read(reader: &mut WeightReader<'_>, spec: &ModernSpec, layer: usize) -> Result<Self, ModelError> {
        let path = |part: &str| format!("layer.{layer}.{part}");
        let attention_norm = match layer {
            0 => None,
            _ => Some(Norm::read(reader, &path("attention_norm"), spec.norm)?),
        };
        Ok(Self {
            attention_norm,
            projection: linear(reader, &path("projection"))?,
            out: linear(reader, &path("out"))?,
            norm: Norm::read(reader, &path("norm"), spec.norm)?,
            up: linear(reader, &path("up"))?,
            down: linear(reader, &path("down"))?,
            activation: spec.activation,
            heads: spec.heads,
            farthest: (!spec.sees_all[layer]).then_some(spec.farthest),
        })
    }

    /// `[tokens, hidden]` → `[tokens, hidden]`.
    fn forward(&self, x: &Tensor, texts: &[Range<usize>], angles: &Angles, pause: Pause<'_>) -> CandleResult<Tensor> {
        let hidden = x.dim(1)?;
        let Angles { planes, cos, sin } = angles;
        let [query, key, value] = in_parts([x, cos, sin], [hidden; 3], pause, |[x, cos, sin]| {
            let angles = Angles { planes: *planes, cos: cos.clone(), sin: sin.clone() };
            let normed = self.attention_norm.as_ref().map_or_else(|| Ok(x.clone()), |norm| norm.forward(x))?;
            let all = self.projection.forward(&normed)?;
            let part = |at: usize| all.narrow(1, at * hidden, hidden)?.contiguous();
            let turned = |x: &Tensor| angles.rotate(x, self.heads, 0)?.reshape(x.shape());
            Ok([turned(&part(0)?)?, turned(&part(1)?)?, part(2)?])
        })?;
        let sight = Sight { heads: self.heads, biases: None, slopes: None, farthest: self.farthest };
        let attended = attend([&query, &key, &value], texts, &sight)?;
        pause();
        let [out] = in_parts([x, &attended], [hidden], pause, |[x, attended]| {
            let x = (x + self.out.forward(attended)?)?;
            let both = self.up.forward(&self.norm.forward(&x)?)?;
            let inner = both.dim(1)? / 2;
            let passes = self.activation.forward(&both.narrow(1, 0, inner)?.contiguous()?)?;
            let inner = (passes * both.narrow(1, inner, inner)?.contiguous()?)?;
            Ok([(x + self.down.forward(&inner)?)?])
        })?;
        Ok(out)
    }
}

impl EncoderBody for ModernBody {
    fn rows(&self, texts: &[EncoderText<'_>], ranges: &[Range<usize>], pause: Pause<'_>) -> CandleResult<Tensor> {
        let all: Vec<u32> = texts.iter().flat_map(|text| text.tokens).copied().collect();
        let of_text = |text: &EncoderText<'_>| {
            let length = text.tokens.len();
            (0..length).map(move |at| Position { at: [at; 3], length })
        };
        let positions: Vec<Position> = texts.iter().flat_map(of_text).collect();
        let angles = |rope: &Rope| rope.angles(&positions, self.target.dtype, &self.target.device);
        let [of_all, of_near] = [angles(&self.ropes[0])?, angles(&self.ropes[1])?];
        let mut x = self.norm.forward(&self.words.rows(&all, &self.target)?)?;
        for layer in &self.layers {
            pause();
            let angles = if layer.farthest.is_some() { &of_near } else { &of_all };
            x = layer.forward(&x, ranges, angles, pause)?;
        }
        self.last.forward(&x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::RopeScaling;

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
        let thetas = |spec: &ModernSpec| [spec.ropes[0].theta, spec.ropes[1].theta];
        assert_eq!((thetas(&old), old.farthest), ([160_000.0, 5.0], 5));
        assert_eq!(old.sees_all, [true, false, true, false]);
        let new = of(r#","layer_types":["sliding_attention","full_attention","full_attention","sliding_attention"],
            "rope_parameters":{"full_attention":{"rope_theta":7.0}}"#)
        .unwrap();
        assert_eq!(thetas(&new), [7.0, 10_000.0]);
        assert_eq!(new.sees_all, [false, true, true, false]);
        let yarn = of(r#","rope_parameters":{"full_attention":{"rope_type":"yarn","rope_theta":7.0,"factor":4.0,
            "original_max_position_embeddings":10},"sliding_attention":{"rope_type":"default","rope_theta":5.0}}"#)
        .unwrap();
        assert!(matches!(yarn.ropes[0].scaling, RopeScaling::Yarn { factor: 4.0, .. }));
        assert_eq!(yarn.ropes[1].scaling, RopeScaling::None);
        let both = of(r#","rope_scaling":{"rope_type":"linear","factor":2.0}"#).unwrap();
        assert_eq!(both.ropes.map(|rope| rope.scaling), [const { RopeScaling::Linear { factor: 2.0 } }; 2]);
        for (wrong, said) in [
            (r#","layer_types":["full_attention"]"#, "1 layer_types"),
            (r#","classifier_pooling":"last""#, "'last'"),
            (r#","layer_types":["full_attention","sliding_attention","full_attention","odd"]"#, "'odd'"),
            (r#","rope_parameters":{"full_attention":{"rope_type":"odd"}}"#, "'odd'"),
            (r#","rope_parameters":{"rope_type":"linear","factor":2.0}"#, "rope_parameters"),
            (r#","hidden_activation":"snake""#, "'snake'"),
            (r#","num_labels":0"#, "0 labels"),
        ] {
            assert!(of(wrong).unwrap_err().to_string().contains(said), "{wrong}");
        }
    }
}
