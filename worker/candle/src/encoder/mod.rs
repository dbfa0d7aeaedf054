//! Encoders: models that turn a text into a vector, or a pair of texts into a number for each label. Texts of several
//! requests are computed in one pass, without padding.

mod attend;
mod decoder_rows;
mod facts;
mod layers;
mod pooling;
mod steps;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use candle_core::{Result as CandleResult, Tensor};
use model_boss_engine::{DecoderError, EncoderInfo, EncoderText, LabelShares, PairForm, PlaceUse, TextEncoder};
use model_boss_protocol::{DeviceId, ENCODER_TYPES, KvCacheType};
use model_boss_weights::model_folder;

use crate::device;
use crate::error::{LoadError, ModelError};
use crate::files::ModelFiles;
use crate::layers::linear::{Bias, Linear};
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::Norm;
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;
use facts::{EncoderSpec, HeadActivation};
use layers::{EncoderLayer, EncoderPass, biases_by_distance, norm_spec};
use pooling::{DenseActivation, PoolStep, Pooling, SentenceFolder};
use steps::{LoadedStep, loaded_steps, pooled, ranges};

pub use decoder_rows::load_decoder_embedder;

/// An encoder whose weights are loaded.
struct LoadedEncoder {
    spec: EncoderSpec,
    info: EncoderInfo,
    target: WeightTarget,
    words: Matrix,
    positions: Tensor,
    /// The vectors of the types of tokens, `[kinds, hidden]`: of the first text, and of the second.
    kinds: Option<Tensor>,
    norm: Norm,
    layers: Vec<EncoderLayer>,
    distances: Option<Tensor>,
    steps: Vec<LoadedStep>,
    places: Arc<[PlaceUse]>,
}

/// The results that are asked of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderTask {
    /// The vector of a text.
    Vectors,
    /// A number for each of the labels of a classifier.
    Labels,
}

/// Whether a model's `config.json` is that of an encoder.
pub fn is_encoder(source: &Path) -> bool {
    let kind = ModelFiles::plain(source).ok().and_then(|(_, config)| facts::model_type(&config));
    kind.is_some_and(|kind| ENCODER_TYPES.contains(&kind.as_str()))
}

/// Loads an encoder and reports its progress, as a share from 0 to 1. The path is a folder with `config.json` and
/// safetensors, as `sentence-transformers` or `transformers` write it.
pub fn load_encoder(
    source: &Path,
    on: &DeviceId,
    task: EncoderTask,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn TextEncoder>, LoadError> {
    let device = device::open(on)?;
    let failed = |reason: ModelError| match reason {
        ModelError::Device(error) => LoadError::DeviceLost { device: on.clone(), why: error.to_string() },
        reason => LoadError::BadModel { model: source.to_owned(), reason: Box::new(reason) },
    };
    let read = || -> Result<LoadedEncoder, ModelError> {
        let (files, config) = ModelFiles::plain(source)?;
        let spec = EncoderSpec::from_config(&config)?;
        let folder = match task {
            EncoderTask::Vectors => SentenceFolder::read(model_folder(source), Pooling::Mean)?,
            EncoderTask::Labels => {
                SentenceFolder::plain(model_folder(source), vec![PoolStep::Pool(vec![Pooling::First])])?
            }
        };
        let prefix = prefix_of(&files, &spec);
        let mut parts = parts_of(&files, &spec, &prefix);
        if task == EncoderTask::Labels {
            parts.extend(head_parts(&spec, &prefix));
        }
        let mut expected = 0;
        let mut kinds = Vec::new();
        for (name, shape) in &parts {
            let stored = files.get(name)?;
            if stored.shape != *shape {
                let what = format!("has the shape {:?} in place of {shape:?}", stored.shape);
                return Err(ModelError::Tensor { name: name.clone(), what });
            }
            expected += stored.len();
            if shape.len() == 2 {
                kinds.push(stored.kind);
            }
        }
        let target = WeightTarget::of(device, &kinds, KvCacheType::Auto)
            .map_err(|reason| ModelError::Device(DecoderError::Step(reason.to_string())))?;
        let mut reader = WeightReader::new(&files, &target, expected, progress);
        let mut encoder = LoadedEncoder::read(spec, &folder, &mut reader, (&target, on), &prefix)?;
        if task == EncoderTask::Labels {
            encoder.read_head(&mut reader, &prefix)?;
        }
        Ok(encoder)
    };
    Ok(Box::new(read().map_err(failed)?))
}

/// The prefix of the names in this file: none, where it has the encoder alone.
fn prefix_of(files: &ModelFiles, spec: &EncoderSpec) -> String {
    let prefixes = [spec.names.prefix, ""];
    let has = |prefix: &&str| files.has(&format!("{prefix}{WORDS}"));
    prefixes.into_iter().find(has).unwrap_or_default().to_owned()
}

const WORDS: &str = "embeddings.word_embeddings.weight";
const POSITIONS: &str = "embeddings.position_embeddings.weight";
const KINDS: &str = "embeddings.token_type_embeddings.weight";
const NORM: &str = "embeddings.LayerNorm";

/// Every tensor that the spec needs, with its shape.
fn parts_of(files: &ModelFiles, spec: &EncoderSpec, prefix: &str) -> Vec<(String, Vec<usize>)> {
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

/// The tensors of a classifier's head.
fn head_parts(spec: &EncoderSpec, prefix: &str) -> Vec<(String, Vec<usize>)> {
    let (head, hidden, labels) = (&spec.names.head, spec.hidden, spec.labels.len());
    let dense = if head.dense_in_layers { format!("{prefix}{}", head.dense) } else { head.dense.to_owned() };
    [
        (format!("{dense}.weight"), vec![hidden, hidden]),
        (format!("{dense}.bias"), vec![hidden]),
        (format!("{}.weight", head.labels), vec![labels, hidden]),
        (format!("{}.bias", head.labels), vec![labels]),
    ]
    .into()
}

fn on_device<T>(result: CandleResult<T>) -> Result<T, ModelError> {
    result.map_err(|error| ModelError::Device(device::failure(&error)))
}

impl LoadedEncoder {
    fn read(
        spec: EncoderSpec,
        folder: &SentenceFolder,
        reader: &mut WeightReader<'_>,
        (target, on): (&WeightTarget, &DeviceId),
        prefix: &str,
    ) -> Result<Self, ModelError> {
        let named = |name: &str| format!("{prefix}{name}");
        let words = reader.matrix(&named(WORDS))?;
        let positions = reader.tensor(&named(POSITIONS))?;
        let kinds = if spec.kinds > 0 { Some(reader.tensor(&named(KINDS))?) } else { None };
        let norm = Norm::read(reader, &named(NORM), norm_spec(&spec))?;
        let layers = (0..spec.layers)
            .map(|layer| EncoderLayer::read(reader, &spec, &named(&format!("{}{layer}", spec.names.layer))))
            .collect::<Result<Vec<_>, _>>()?;
        let longest = folder.max_tokens.unwrap_or(usize::MAX).min(spec.longest());
        let distances = match spec.names.distances {
            Some(name) => Some(on_device(biases_by_distance(&reader.tensor(&named(name))?, longest, &target.device))?),
            None => None,
        };
        let steps = loaded_steps(folder, target)?;
        let weight_bytes = reader.bytes();
        let place = PlaceUse::new(on.clone(), 0..spec.layers, (weight_bytes, 0), (0, 0));
        let info = EncoderInfo {
            vocab_size: spec.vocabulary,
            max_tokens: longest,
            width: folder.width(spec.hidden),
            labels: Vec::new(),
            shares: LabelShares::default(),
            pairs: PairForm::Joined,
            weight_bytes,
            prompts: folder.prompts.clone(),
            default_prompt: folder.default_prompt.clone(),
        };
        let target = target.clone();
        Ok(Self { spec, info, target, words, positions, kinds, norm, layers, distances, steps, places: [place].into() })
    }

    /// Adds the parts of a classifier behind the first token's vector.
    fn read_head(&mut self, reader: &mut WeightReader<'_>, prefix: &str) -> Result<(), ModelError> {
        let head = &self.spec.names.head;
        let dense = if head.dense_in_layers { format!("{prefix}{}", head.dense) } else { head.dense.to_owned() };
        let activation = match head.activation {
            HeadActivation::Tanh => DenseActivation::Tanh,
            HeadActivation::Relu => DenseActivation::Relu,
        };
        self.steps.push(LoadedStep::Dense(Linear::read(reader, &dense, Bias::With)?, activation));
        let labels = Linear::read(reader, head.labels, Bias::With)?;
        self.steps.push(LoadedStep::Dense(labels, DenseActivation::Identity));
        self.info.width = self.spec.labels.len();
        self.info.labels = self.spec.labels.clone();
        self.info.shares = self.spec.shares;
        self.info.weight_bytes = reader.bytes();
        Ok(())
    }

    /// The vectors of all tokens, `[tokens, hidden]`.
    fn tokens(&self, texts: &[EncoderText<'_>], ranges: &[Range<usize>]) -> CandleResult<Tensor> {
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

    fn vectors(&self, texts: &[EncoderText<'_>]) -> CandleResult<Vec<Vec<f32>>> {
        let ranges = ranges(texts);
        let tokens = self.tokens(texts, &ranges)?;
        pooled(&tokens, texts, &self.steps)
    }
}

impl TextEncoder for LoadedEncoder {
    fn info(&self) -> &EncoderInfo {
        &self.info
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        Arc::clone(&self.places)
    }

    fn encode(&mut self, texts: &[EncoderText<'_>]) -> Result<Vec<Vec<f32>>, DecoderError> {
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        let is_wrong = |text: &EncoderText<'_>| {
            let text = text.tokens;
            let unknown = text.iter().any(|token| *token as usize >= self.info.vocab_size);
            text.is_empty() || text.len() > self.info.max_tokens || unknown
        };
        if texts.iter().any(is_wrong) {
            return Err(DecoderError::Step("a text is empty, too long, or has an unknown token".to_owned()));
        }
        let on_cpu = self.target.device.is_cpu();
        // On one of the threads that share the products.
        let computed = if on_cpu { rayon::scope(|_| self.vectors(texts)) } else { self.vectors(texts) };
        computed.map_err(|error| device::failure(&error))
    }
}
