//! Encoders: models that turn a text into a vector. Texts of several requests are computed in one pass, without
//! padding.

mod attend;
mod facts;
mod layers;
mod pooling;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use candle_core::{Result as CandleResult, Tensor};
use model_boss_engine::{DecoderError, EncoderInfo, PlaceUse, TextEncoder};
use model_boss_protocol::{DeviceId, KvCacheType};
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
use facts::EncoderSpec;
use layers::{EncoderLayer, EncoderPass, biases_by_distance, norm_spec};
use pooling::{DenseActivation, PoolStep, Pooling, SentenceFolder, normalised};

/// An encoder whose weights are loaded.
struct LoadedEncoder {
    spec: EncoderSpec,
    info: EncoderInfo,
    target: WeightTarget,
    words: Matrix,
    positions: Tensor,
    /// The vector of the first type of tokens, `[1, hidden]`.
    kind: Option<Tensor>,
    norm: Norm,
    layers: Vec<EncoderLayer>,
    distances: Option<Tensor>,
    steps: Vec<LoadedStep>,
    places: Arc<[PlaceUse]>,
}

enum LoadedStep {
    Pool(Vec<Pooling>),
    Dense(Linear, DenseActivation),
    Normalise,
}

/// Loads an encoder and reports its progress, as a share from 0 to 1. The path is a folder with `config.json` and
/// safetensors, as `sentence-transformers` or `transformers` write it.
pub fn load_encoder(
    source: &Path,
    on: &DeviceId,
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
        let folder = SentenceFolder::read(model_folder(source))?;
        let prefix = prefix_of(&files, &spec);
        let parts = parts_of(&files, &spec, &prefix);
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
        LoadedEncoder::read(spec, &folder, &mut reader, (&target, on), &prefix)
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
        let kind = match spec.names.has_types {
            true => Some(on_device(reader.tensor(&named(KINDS))?.narrow(0, 0, 1))?),
            false => None,
        };
        let norm = Norm::read(reader, &named(NORM), norm_spec(&spec))?;
        let layers = (0..spec.layers)
            .map(|layer| EncoderLayer::read(reader, &spec, &named(&format!("{}{layer}", spec.names.layer))))
            .collect::<Result<Vec<_>, _>>()?;
        let longest = folder.max_tokens.unwrap_or(usize::MAX).min(spec.longest());
        let distances = match spec.names.distances {
            Some(name) => Some(on_device(biases_by_distance(&reader.tensor(&named(name))?, longest, &target.device))?),
            None => None,
        };
        let steps = folder.steps.iter().map(|step| loaded_step(step, target)).collect::<Result<Vec<_>, _>>()?;
        let weight_bytes = reader.bytes();
        let place = PlaceUse::new(on.clone(), 0..spec.layers, (weight_bytes, 0), (0, 0));
        let info = EncoderInfo {
            vocab_size: spec.vocabulary,
            max_tokens: longest,
            width: folder.width(spec.hidden),
            weight_bytes,
            prompts: folder.prompts.clone(),
            default_prompt: folder.default_prompt.clone(),
        };
        let target = target.clone();
        Ok(Self { spec, info, target, words, positions, kind, norm, layers, distances, steps, places: [place].into() })
    }

    /// The vectors of all tokens, `[tokens, hidden]`.
    fn tokens(&self, texts: &[&[u32]], ranges: &[Range<usize>]) -> CandleResult<Tensor> {
        let all: Vec<u32> = texts.concat();
        let first = self.spec.first_position as u32;
        let places: Vec<u32> = texts.iter().flat_map(|text| (first..).take(text.len())).collect();
        let places = Tensor::from_vec(places, all.len(), &self.target.device)?;
        let mut x = (self.words.rows(&all, &self.target)? + self.positions.index_select(&places, 0)?)?;
        if let Some(kind) = &self.kind {
            x = x.broadcast_add(kind)?;
        }
        let mut x = self.norm.forward(&x)?;
        let pass = EncoderPass { spec: &self.spec, texts: ranges, distances: self.distances.as_ref() };
        for layer in &self.layers {
            x = layer.forward(&x, &pass)?;
        }
        Ok(x)
    }

    fn vectors(&self, texts: &[&[u32]]) -> CandleResult<Vec<Vec<f32>>> {
        let mut ranges: Vec<Range<usize>> = Vec::with_capacity(texts.len());
        for text in texts {
            let start = ranges.last().map_or(0, |before| before.end);
            ranges.push(start..start + text.len());
        }
        let tokens = self.tokens(texts, &ranges)?;
        let mut vectors = tokens.clone();
        for step in &self.steps {
            vectors = match step {
                LoadedStep::Pool(ways) => {
                    let of_text = |range: &Range<usize>| {
                        let rows = tokens.narrow(0, range.start, range.len())?;
                        let parts = ways.iter().map(|way| way.of(&rows)).collect::<CandleResult<Vec<_>>>()?;
                        Tensor::cat(&parts, 1)
                    };
                    Tensor::cat(&ranges.iter().map(of_text).collect::<CandleResult<Vec<_>>>()?, 0)?
                }
                LoadedStep::Dense(dense, activation) => {
                    let product = dense.forward(&vectors)?;
                    match activation {
                        DenseActivation::Tanh => product.tanh()?,
                        DenseActivation::Identity => product,
                    }
                }
                LoadedStep::Normalise => normalised(&vectors)?,
            };
        }
        vectors.to_dtype(candle_core::DType::F32)?.to_vec2()
    }
}

/// A step with its weights.
fn loaded_step(step: &PoolStep, target: &WeightTarget) -> Result<LoadedStep, ModelError> {
    Ok(match step {
        PoolStep::Pool(ways) => LoadedStep::Pool(ways.clone()),
        PoolStep::Normalise => LoadedStep::Normalise,
        PoolStep::Dense { folder, shape, bias, activation } => {
            let (files, _) = ModelFiles::plain(folder)?;
            let stored = files.get("linear.weight")?;
            if stored.shape != *shape {
                let what = format!("has the shape {:?} in place of {shape:?}", stored.shape);
                return Err(ModelError::Tensor { name: "linear.weight".to_owned(), what });
            }
            let mut ignored = |_| {};
            let mut reader = WeightReader::new(&files, target, stored.len(), &mut ignored);
            LoadedStep::Dense(Linear::read(&mut reader, "linear", Bias::from(*bias))?, *activation)
        }
    })
}

impl TextEncoder for LoadedEncoder {
    fn info(&self) -> &EncoderInfo {
        &self.info
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        Arc::clone(&self.places)
    }

    fn encode(&mut self, texts: &[&[u32]]) -> Result<Vec<Vec<f32>>, DecoderError> {
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        let is_wrong = |text: &&[u32]| {
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
