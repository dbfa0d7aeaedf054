//! BERT and those that follow its layer: words and types of tokens are added, in some models places too, and each layer
//! has a norm behind each of its parts.

use std::ops::Range;

use candle_core::{Result as CandleResult, Tensor};
use model_boss_engine::{EncoderText, LabelShares};

use super::adapted::TaskMatrices;
use super::distances::DistanceBuckets;
use super::family::{EncoderBody, EncoderFamily, EncoderSize, Pause, read_head};
use super::layers::{EncoderLayer, EncoderPass, slopes};
use super::parts::{EncoderPart, PartFinder};
use super::pooling::{DenseActivation, Pooling};
use super::row_parts::in_parts;
use super::spec::{Biases, EncoderSpec, HeadForm, MlpForm, TokenPlaces};
use super::steps::LoadedStep;
use crate::device;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::Norm;
use crate::layers::rope::{Position, Rope};
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;
use crate::spec::Activation;

const WORDS: &[&str] = &["embeddings.word_embeddings", "token_embd"];
const POSITIONS: &[&str] = &["embeddings.position_embeddings", "position_embd"];
const KINDS: &[&str] = &["embeddings.token_type_embeddings", "token_types"];
const DISTANCES: &[&str] = &["encoder.relative_attention_bias"];
const NORM: &[&str] = &["embeddings.LayerNorm", "emb_ln", "token_embd_norm"];
const LAYERS: &[&str] = &["encoder.layer.", "encoder.layers.", "transformer.layer.", "layers.", "blk."];

/// Queries, keys and values in one matrix.
const PACKED: &[&str] = &["attn.Wqkv", "mixer.Wqkv", "attention.qkv_proj", "attn_qkv"];
const QUERY: &[&str] =
    &["attention.self.query", "attention.q_lin", "attention.attn.q", "self_attn.q_proj", "attention.q_proj", "attn_q"];
const KEY: &[&str] =
    &["attention.self.key", "attention.k_lin", "attention.attn.k", "self_attn.k_proj", "attention.k_proj", "attn_k"];
const VALUE: &[&str] =
    &["attention.self.value", "attention.v_lin", "attention.attn.v", "self_attn.v_proj", "attention.v_proj", "attn_v"];
const OUT: &[&str] = &[
    "attention.output.dense",
    "attention.out_lin",
    "attention.attn.o",
    "self_attn.o_proj",
    "attention.o_proj",
    "attn.out_proj",
    "mixer.out_proj",
    "attn_output",
];
const ATTENTION_NORM: &[&str] = &[
    "attention.output.LayerNorm",
    "sa_layer_norm",
    "attention.LayerNorm",
    "post_attention_layernorm",
    "attn_ln",
    "norm1",
    "attn_output_norm",
];
/// Norms of queries and of keys over all heads, and one more behind attention (jina-embeddings-v2-base-code).
const QUERY_NORM: &[&str] = &["attention.self.layer_norm_q", "attn_q_norm"];
const KEY_NORM: &[&str] = &["attention.self.layer_norm_k", "attn_k_norm"];
const SECOND_NORM: &[&str] = &["layer_norm_1", "attn_norm_2"];
const UP: &[&str] = &["intermediate.dense", "ffn.lin1", "mlp.fc1", "mlp.up_proj", "mlp.fc11", "ffn_up"];
const GATE: &[&str] = &["mlp.gate_proj", "mlp.fc12", "ffn_gate"];
/// Gate and up in one matrix: the gate first, or up first.
const GATE_AND_UP: &[&str] = &["mlp.gated_layers"];
const UP_AND_GATE: &[&str] = &["mlp.up_gate_proj", "mlp.up_gated_layer"];
const DOWN: &[&str] = &["output.dense", "ffn.lin2", "mlp.fc2", "mlp.down_proj", "mlp.wo", "mlp.down_layer", "ffn_down"];
const LAYER_NORM: &[&str] = &[
    "output.LayerNorm",
    "output_layer_norm",
    "post_mlp_layernorm",
    "mlp_ln",
    "norm2",
    "mlp.layernorm",
    "layer_norm_2",
    "layer_output_norm",
];

/// Layers of BERT's kind with their weights.
struct BertBody {
    spec: EncoderSpec,
    target: WeightTarget,
    words: Matrix,
    words_of_tasks: TaskMatrices,
    positions: Option<Tensor>,
    /// The vectors of the types of tokens, `[kinds, hidden]`: of the first text, and of the second.
    kinds: Option<Tensor>,
    kinds_of_tasks: TaskMatrices,
    norm: Norm,
    layers: Vec<EncoderLayer>,
    distances: Option<Tensor>,
    rope: Option<Rope>,
    slopes: Option<Vec<f32>>,
}

impl EncoderFamily for EncoderSpec {
    fn size(&self) -> EncoderSize {
        EncoderSize { hidden: self.hidden, layers: self.layers, vocabulary: self.vocabulary, longest: self.longest }
    }

    fn parts(&self, files: &ModelFiles) -> Vec<EncoderPart> {
        let mut finder = PartFinder::new(files, WORDS).with_adapters(self.adapters.tasks.len(), self.adapters.rank);
        let (hidden, kind) = (self.hidden, self.norm.kind);
        finder.linear("words", &finder.path("", WORDS), [self.vocabulary, hidden], false);
        if let TokenPlaces::Table { rows, .. } | TokenPlaces::TableAndDistances { rows, .. } = self.places {
            finder.linear("positions", &finder.path("", POSITIONS), [rows, hidden], false);
        }
        if let TokenPlaces::TableAndDistances { .. } = self.places {
            let path = finder.path("", DISTANCES);
            let buckets = finder.shape(&path).map_or(DistanceBuckets::USUAL.all(), |[buckets, _]| buckets);
            finder.linear("distances", &path, [buckets, self.heads], false);
        }
        if self.kinds.count > 0 {
            finder.linear("kinds", &finder.path("", KINDS), [self.kinds.count, hidden], false);
        }
        finder.norm("norm", &finder.path("", NORM), hidden, kind);
        let has = |before: &&&str| finder.known(&format!("{before}0."), OUT).is_some();
        let layers = LAYERS.iter().find(has).unwrap_or(&LAYERS[0]);
        for layer in 0..self.layers {
            self.layer_parts(&mut finder, layer, &format!("{layers}{layer}."));
        }
        finder.found
    }

    fn head_parts(&self, files: &ModelFiles) -> Vec<EncoderPart> {
        let mut finder = PartFinder::new(files, WORDS);
        let (hidden, labels) = (self.hidden, self.labels.len());
        let bare = |path: &str| files.has(&format!("{path}.weight"));
        let (dense, of_labels) = match self.head {
            HeadForm::Pooler => (Some(finder.path("", &["pooler.dense"])), "classifier"),
            HeadForm::TwoProducts => (Some("classifier.dense".to_owned()), "classifier.out_proj"),
            HeadForm::Distil => (Some("pre_classifier".to_owned()), "classifier"),
            HeadForm::Gguf => (bare("cls").then(|| "cls".to_owned()), "cls.output"),
        };
        let with_bias = |finder: &PartFinder<'_>, path: &str| self.head != HeadForm::Gguf || finder.has_bias(path);
        if let Some(path) = dense {
            // Some files have one product alone.
            let rows = finder.shape(&path).map_or(hidden, |[rows, _]| rows);
            let rows = if rows == labels && !bare(of_labels) { labels } else { hidden };
            finder.linear("head.dense", &path, [rows, hidden], with_bias(&finder, &path));
            if rows == labels && !bare(of_labels) {
                return finder.found;
            }
        }
        finder.linear("head.labels", of_labels, [labels, hidden], with_bias(&finder, of_labels));
        finder.found
    }

    fn labels(&self) -> (&[String], LabelShares) {
        (&self.labels, self.shares)
    }

    fn tasks(&self) -> &[String] {
        &self.adapters.tasks
    }

    fn classifier_pooling(&self) -> Pooling {
        Pooling::First
    }

    fn read(
        &self,
        reader: &mut WeightReader<'_>,
        longest: usize,
        target: &WeightTarget,
    ) -> Result<Box<dyn EncoderBody>, ModelError> {
        let failed = |error: candle_core::Error| ModelError::Device(device::failure(&error));
        let words = reader.matrix("words.weight")?.apart().map_err(failed)?;
        let words_of_tasks = TaskMatrices::read(reader, "words", &self.adapters)?;
        let kinds_of_tasks = TaskMatrices::read(reader, "kinds", &self.adapters)?;
        let mut optional = |name: &str| reader.files().has(name).then(|| reader.tensor(name)).transpose();
        let (positions, kinds) = (optional("positions.weight")?, optional("kinds.weight")?);
        let distances = optional("distances.weight")?;
        let distances =
            distances.map(|table| DistanceBuckets::USUAL.biases(&table, longest, &target.device)).transpose();
        let norm = Norm::read(reader, "norm", self.norm)?;
        let layers =
            (0..self.layers).map(|layer| EncoderLayer::read(reader, self, layer)).collect::<Result<Vec<_>, _>>()?;
        let (mut rope, mut of_heads) = (None, None);
        match &self.places {
            TokenPlaces::Rope(spec) => rope = Some(Rope::new(spec)),
            TokenPlaces::Alibi => of_heads = Some(slopes(self.heads)),
            TokenPlaces::Table { .. } | TokenPlaces::TableAndDistances { .. } => {}
        }
        let (spec, target) = (self.clone(), target.clone());
        let distances = distances.map_err(failed)?;
        Ok(Box::new(BertBody {
            spec,
            target,
            words,
            words_of_tasks,
            positions,
            kinds,
            kinds_of_tasks,
            norm,
            layers,
            distances,
            rope,
            slopes: of_heads,
        }))
    }

    fn read_head(&self, reader: &mut WeightReader<'_>) -> Result<Vec<LoadedStep>, ModelError> {
        let activation = match self.head {
            HeadForm::Distil => DenseActivation::Of(Activation::Relu),
            HeadForm::Pooler | HeadForm::TwoProducts | HeadForm::Gguf => DenseActivation::Tanh,
        };
        read_head(reader, activation, self.norm)
    }
}

impl EncoderSpec {
    /// Every tensor of a layer, with its place and shape.
    fn layer_parts(&self, finder: &mut PartFinder<'_>, layer: usize, before: &str) {
        let (hidden, width, kind) = (self.hidden, self.width(), self.norm.kind);
        let (path, at) =
            (|names: &[&str], finder: &PartFinder<'_>| finder.path(before, names), format!("layer.{layer}"));
        let named = |part: &str| format!("{at}.{part}");
        // Whether a product at a path has a bias.
        let bias = |finder: &PartFinder<'_>, path: &str, of: fn([bool; 4]) -> bool| match self.biases {
            Biases::AsStored => finder.has_bias(path),
            Biases::Of { inputs, out, up, down } => of([inputs, out, up, down]),
        };
        if let Some(packed) = finder.known(before, PACKED) {
            let with = bias(finder, &packed, |[inputs, ..]| inputs);
            for (at, part) in ["query", "key", "value"].iter().enumerate() {
                let rows = Some(at * width..(at + 1) * width);
                finder.rows(&named(part), &packed, rows, [width, hidden], with);
            }
        } else {
            for (part, names) in [("query", QUERY), ("key", KEY), ("value", VALUE)] {
                let path = path(names, finder);
                let with = bias(finder, &path, |[inputs, ..]| inputs);
                finder.linear(&named(part), &path, [width, hidden], with);
            }
        }
        for (part, names, width) in
            [("query_norm", QUERY_NORM, width), ("key_norm", KEY_NORM, width), ("second_norm", SECOND_NORM, hidden)]
        {
            if let Some(path) = finder.known(before, names) {
                finder.norm(&named(part), &path, width, kind);
            }
        }
        let out = path(OUT, finder);
        let with = bias(finder, &out, |[_, out, ..]| out);
        finder.linear(&named("out"), &out, [hidden, width], with);
        finder.norm(&named("attention_norm"), &path(ATTENTION_NORM, finder), hidden, kind);
        finder.norm(&named("norm"), &path(LAYER_NORM, finder), hidden, kind);
        if let Some(experts) = self.experts.as_ref().filter(|experts| experts.are_in(layer)) {
            finder.experts(layer, before, [experts.spec.count, experts.spec.intermediate, hidden]);
            return;
        }
        let down = path(DOWN, finder);
        // The width within is that of the file.
        let inner = finder.shape(&down).map_or(hidden, |[_, inner]| inner);
        let with = bias(finder, &down, |[.., down]| down);
        finder.linear(&named("down"), &down, [hidden, inner], with);
        let up = path(UP, finder);
        // A single matrix of both in GGUF is that of safetensors: the gate first, but for the model with more norms.
        let both_in_up = self.mlp == MlpForm::Gated
            && finder.known(before, GATE).is_none()
            && finder.shape(&up).is_some_and(|[rows, _]| rows == 2 * inner);
        let second_norm = finder.known(before, SECOND_NORM).is_some();
        let gate_first = finder.known(before, GATE_AND_UP).or((both_in_up && !second_norm).then(|| up.clone()));
        let up_first = finder.known(before, UP_AND_GATE).or((both_in_up && second_norm).then(|| up.clone()));
        let packed = gate_first.map(|path| (path, ["gate", "up"])).or(up_first.map(|path| (path, ["up", "gate"])));
        match packed.filter(|_| self.mlp == MlpForm::Gated) {
            Some((path, order)) => {
                let with = bias(finder, &path, |[_, _, up, _]| up);
                for (at, part) in order.iter().enumerate() {
                    finder.rows(&named(part), &path, Some(at * inner..(at + 1) * inner), [inner, hidden], with);
                }
            }
            None => {
                let with = bias(finder, &up, |[_, _, up, _]| up);
                finder.linear(&named("up"), &up, [inner, hidden], with);
                if self.mlp == MlpForm::Gated {
                    let gate = path(GATE, finder);
                    let with = bias(finder, &gate, |[_, _, up, _]| up);
                    finder.linear(&named("gate"), &gate, [inner, hidden], with);
                }
            }
        }
    }
}

impl BertBody {
    /// The vectors of tokens before the first layer, `[tokens, hidden]`.
    fn embedded(&self, texts: &[EncoderText<'_>], pause: Pause<'_>) -> CandleResult<Tensor> {
        let all = texts.iter().flat_map(|text| text.tokens).copied().collect();
        let task = texts.first().and_then(|text| text.task);
        let first = match self.spec.places {
            TokenPlaces::Table { first, .. } | TokenPlaces::TableAndDistances { first, .. } => first as u32,
            TokenPlaces::Rope(_) | TokenPlaces::Alibi => 0,
        };
        let places = texts.iter().flat_map(|text| places_from(first, text.tokens)).collect();
        let knows_pairs = self.spec.kinds.of_pairs && self.spec.kinds.count > 1;
        let kinds_of = |text: &EncoderText<'_>| {
            let second_from = text.second_from;
            (0..text.tokens.len()).map(move |at| u32::from(knows_pairs && at >= second_from))
        };
        let kinds = texts.iter().flat_map(kinds_of).collect();
        let numbers = |of: Vec<u32>| Tensor::new(of, &self.target.device);
        let (all, places, kinds) = (numbers(all)?, numbers(places)?, numbers(kinds)?);
        let [out] = in_parts([&all, &places, &kinds], [self.spec.hidden], pause, |[all, places, kinds]| {
            let mut x = self.words.rows(&all.to_vec1()?, &self.target)?;
            if task.is_some() {
                x = self.words_of_tasks.onto_rows(x, all, task)?;
            }
            if let Some(positions) = &self.positions {
                x = (x + positions.index_select(places, 0)?)?;
            }
            if let Some(table) = &self.kinds {
                x = (x + self.kinds_of_tasks.onto_rows(table.index_select(kinds, 0)?, kinds, task)?)?;
            }
            Ok([self.norm.forward(&x)?])
        })?;
        Ok(out)
    }
}

/// The rows of a text's tokens in the table of places.
fn places_from(first: u32, tokens: &[u32]) -> Vec<u32> {
    let Some(padding) = first.checked_sub(1) else { return (0..).take(tokens.len()).collect() };
    let mut next = first;
    let place = |token: &u32| {
        if *token == padding {
            return padding;
        }
        next += 1;
        next - 1
    };
    tokens.iter().map(place).collect()
}

impl EncoderBody for BertBody {
    fn rows(&self, texts: &[EncoderText<'_>], ranges: &[Range<usize>], pause: Pause<'_>) -> CandleResult<Tensor> {
        let angles = self.rope.as_ref().map(|rope| {
            let of_text = |text: &EncoderText<'_>| {
                let length = text.tokens.len();
                (0..length).map(move |at| Position { at: [at; 3], length })
            };
            let positions: Vec<Position> = texts.iter().flat_map(of_text).collect();
            rope.angles(&positions, self.target.dtype, &self.target.device)
        });
        let pass = EncoderPass {
            spec: &self.spec,
            texts: ranges,
            distances: self.distances.as_ref(),
            slopes: self.slopes.as_deref(),
            angles: angles.transpose()?,
            task: texts.first().and_then(|text| text.task),
            pause,
        };
        let mut x = self.embedded(texts, pause)?;
        for layer in &self.layers {
            x = layer.forward(&x, &pass)?;
        }
        Ok(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_1_padding_inside_a_text_takes_no_place() {
        assert_eq!(places_from(0, &[5, 1, 0, 6]), [0, 1, 2, 3]);
        // create_position_ids_from_input_ids(torch.tensor([[0, 5, 1, 6, 1, 1, 2]]), 1) of transformers.
        assert_eq!(places_from(2, &[0, 5, 1, 6, 1, 1, 2]), [2, 3, 1, 4, 1, 1, 5]);
    }
}
