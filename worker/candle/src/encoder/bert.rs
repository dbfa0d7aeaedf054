//! BERT and those that follow its layer: words, places and types of tokens are added, and each layer has a norm behind
//! each of its parts.

use std::ops::Range;

use candle_core::{Result as CandleResult, Tensor};
use model_boss_engine::{EncoderText, LabelShares};

use super::facts::{EncoderSpec, HeadActivation};
use super::family::{EncoderBody, EncoderFamily, EncoderSize, NamedShape};
use super::layers::{EncoderLayer, EncoderPass, biases_by_distance, norm_spec};
use super::pooling::{DenseActivation, Pooling};
use super::steps::LoadedStep;
use crate::device;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::layers::linear::{Bias, Linear};
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::Norm;
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;

const WORDS: &str = "embeddings.word_embeddings.weight";
const POSITIONS: &str = "embeddings.position_embeddings.weight";
const KINDS: &str = "embeddings.token_type_embeddings.weight";
const NORM: &str = "embeddings.LayerNorm";

/// Layers of BERT's kind with their weights.
struct BertBody {
    spec: EncoderSpec,
    target: WeightTarget,
    words: Matrix,
    positions: Tensor,
    /// The vectors of the types of tokens, `[kinds, hidden]`: of the first text, and of the second.
    kinds: Option<Tensor>,
    norm: Norm,
    layers: Vec<EncoderLayer>,
    distances: Option<Tensor>,
}

impl EncoderFamily for EncoderSpec {
    fn size(&self) -> EncoderSize {
        EncoderSize { hidden: self.hidden, layers: self.layers, vocabulary: self.vocabulary, longest: self.longest() }
    }

    fn prefix(&self) -> (&'static str, &'static str) {
        (self.names.prefix, WORDS)
    }

    fn parts(&self, files: &ModelFiles, prefix: &str) -> Vec<NamedShape> {
        parts_of(files, self, prefix)
    }

    fn head_parts(&self, prefix: &str) -> Vec<NamedShape> {
        let (head, hidden, labels) = (&self.names.head, self.hidden, self.labels.len());
        let dense = dense_of(self, prefix);
        [
            (format!("{dense}.weight"), vec![hidden, hidden]),
            (format!("{dense}.bias"), vec![hidden]),
            (format!("{}.weight", head.labels), vec![labels, hidden]),
            (format!("{}.bias", head.labels), vec![labels]),
        ]
        .into()
    }

    fn labels(&self) -> (&[String], LabelShares) {
        (&self.labels, self.shares)
    }

    fn classifier_pooling(&self) -> Pooling {
        Pooling::First
    }

    fn read(
        &self,
        reader: &mut WeightReader<'_>,
        longest: usize,
        target: &WeightTarget,
        prefix: &str,
    ) -> Result<Box<dyn EncoderBody>, ModelError> {
        let named = |name: &str| format!("{prefix}{name}");
        let words = reader.matrix(&named(WORDS))?;
        let positions = reader.tensor(&named(POSITIONS))?;
        let kinds = if self.kinds > 0 { Some(reader.tensor(&named(KINDS))?) } else { None };
        let norm = Norm::read(reader, &named(NORM), norm_spec(self))?;
        let layers = (0..self.layers)
            .map(|layer| EncoderLayer::read(reader, self, &named(&format!("{}{layer}", self.names.layer))))
            .collect::<Result<Vec<_>, _>>()?;
        let distances = match self.names.distances {
            Some(name) => {
                let biases = biases_by_distance(&reader.tensor(&named(name))?, longest, &target.device);
                let biases = biases.map_err(|error| ModelError::Device(device::failure(&error)))?;
                Some(biases)
            }
            None => None,
        };
        let (spec, target) = (self.clone(), target.clone());
        Ok(Box::new(BertBody { spec, target, words, positions, kinds, norm, layers, distances }))
    }

    fn read_head(&self, reader: &mut WeightReader<'_>, prefix: &str) -> Result<Vec<LoadedStep>, ModelError> {
        let activation = match self.names.head.activation {
            HeadActivation::Tanh => DenseActivation::Tanh,
            HeadActivation::Relu => DenseActivation::Relu,
        };
        let dense = Linear::read(reader, &dense_of(self, prefix), Bias::With)?;
        let labels = Linear::read(reader, self.names.head.labels, Bias::With)?;
        Ok(vec![LoadedStep::Dense(dense, activation), LoadedStep::Dense(labels, DenseActivation::Identity)])
    }
}

/// The name of a classifier's first product.
fn dense_of(spec: &EncoderSpec, prefix: &str) -> String {
    let head = &spec.names.head;
    if head.dense_in_layers { format!("{prefix}{}", head.dense) } else { head.dense.to_owned() }
}

/// Every tensor of the layers, with its shape.
fn parts_of(files: &ModelFiles, spec: &EncoderSpec, prefix: &str) -> Vec<NamedShape> {
    let (names, hidden) = (spec.names, spec.hidden);
    let mut parts = Vec::new();
    let mut part = |name: String, shape: &[usize]| parts.push((format!("{prefix}{name}"), shape.to_vec()));
    part(WORDS.to_owned(), &[spec.vocabulary, hidden]);
    part(POSITIONS.to_owned(), &[spec.positions, hidden]);
    let norm = |name: &str, part: &mut dyn FnMut(String, &[usize])| {
        ["weight", "bias"].iter().for_each(|of| part(format!("{name}.{of}"), &[hidden]));
    };
    norm(NORM, &mut part);
    for layer in 0..spec.layers {
        let path = format!("{}{layer}", names.layer);
        // The width within is that of the file.
        let up = format!("{prefix}{path}.{}.weight", names.up);
        let inner = files.get(&up).ok().and_then(|stored| stored.shape.first().copied()).unwrap_or(hidden);
        for name in [names.query, names.key, names.value, names.out] {
            part(format!("{path}.{name}.weight"), &[hidden, hidden]);
            part(format!("{path}.{name}.bias"), &[hidden]);
        }
        part(format!("{path}.{}.weight", names.up), &[inner, hidden]);
        part(format!("{path}.{}.bias", names.up), &[inner]);
        part(format!("{path}.{}.weight", names.down), &[hidden, inner]);
        part(format!("{path}.{}.bias", names.down), &[hidden]);
        norm(&format!("{path}.{}", names.attention_norm), &mut part);
        norm(&format!("{path}.{}", names.norm), &mut part);
    }
    parts
}

impl EncoderBody for BertBody {
    fn rows(&self, texts: &[EncoderText<'_>], ranges: &[Range<usize>]) -> CandleResult<Tensor> {
        let all: Vec<u32> = texts.iter().flat_map(|text| text.tokens).copied().collect();
        let first = self.spec.first_position as u32;
        let places: Vec<u32> = texts.iter().flat_map(|text| (first..).take(text.tokens.len())).collect();
        let places = Tensor::from_vec(places, all.len(), &self.target.device)?;
        let mut x = (self.words.rows(&all, &self.target)? + self.positions.index_select(&places, 0)?)?;
        if let Some(kinds) = &self.kinds {
            let pairs = self.spec.kinds > 1 && texts.iter().any(|text| text.second_from < text.tokens.len());
            x = if pairs {
                let of_text = |text: &EncoderText<'_>| {
                    let second_from = text.second_from;
                    (0..text.tokens.len()).map(move |at| u32::from(at >= second_from))
                };
                let of_tokens: Vec<u32> = texts.iter().flat_map(of_text).collect();
                (x + kinds.index_select(&Tensor::from_vec(of_tokens, all.len(), &self.target.device)?, 0)?)?
            } else {
                x.broadcast_add(&kinds.narrow(0, 0, 1)?)?
            };
        }
        let mut x = self.norm.forward(&x)?;
        let pass = EncoderPass { spec: &self.spec, texts: ranges, distances: self.distances.as_ref() };
        for layer in &self.layers {
            x = layer.forward(&x, &pass)?;
        }
        Ok(x)
    }
}
