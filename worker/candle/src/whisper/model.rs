//! A loaded Whisper model: the contract of the engine on encoder and decoder.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use candle_core::Result as CandleResult;
use model_boss_audio::{MelShape, RATE};
use model_boss_engine::speech::{AtSpeechPause, HeardWindow, SpeechInfo, SpeechModel, SpeechStep, SpeechText};
use model_boss_engine::{DecoderError, PlaceUse};
use model_boss_protocol::{DeviceId, KvCacheType};
use model_boss_weights::gguf::{GgufModel, TensorType};
use model_boss_weights::{gguf_file, model_folder};
use serde_json::{Map, Value};

use super::decoder::{TextRows, Watched, WhisperDecoder, WindowKv};
use super::encoder::WhisperEncoder;
use super::generation::SpeechFacts;
use super::kv::{COUNTED, WhisperKv, WindowBytes};
use super::names::WhisperNames;
use super::spec::WhisperSpec;
use crate::device;
use crate::encoder::folder_file::{bad, file};
use crate::error::{LoadError, ModelError};
use crate::files::ModelFiles;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;
use crate::spec::spelling::PartLocation;

/// Samples of a window of a spectrogram, and from one to the next.
const WINDOW: usize = 400;
const HOP: usize = 160;

/// A model whose weights are loaded.
struct LoadedWhisper {
    info: SpeechInfo,
    spec: WhisperSpec,
    aligned: Vec<[usize; 2]>,
    encoder: WhisperEncoder,
    decoder: WhisperDecoder,
    places: Arc<[PlaceUse]>,
    /// Bytes of keys and values that are held.
    held: Arc<AtomicU64>,
    on_cpu: bool,
}

/// A window with its memory.
struct HeldWindow {
    kv: WindowKv,
    _held: WindowBytes,
}

/// A text with its memory.
struct HeldText {
    window: Arc<HeldWindow>,
    layers: Vec<WhisperKv>,
    past: usize,
    held: WindowBytes,
}

/// The fields of `preprocessor_config.json` that matter here.
#[derive(Default, serde::Deserialize)]
struct Preprocessor {
    n_fft: Option<usize>,
    hop_length: Option<usize>,
    feature_size: Option<usize>,
    sampling_rate: Option<u32>,
}

/// Loads a model that turns sound into text, with room for so many windows at the same time, and reports the progress,
/// as a share from 0 to 1. The path is a folder of `transformers`, or a GGUF file, beside which the configuration may
/// lie.
pub fn load_speech(
    source: &Path,
    on: &DeviceId,
    windows: usize,
    kv: KvCacheType,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn SpeechModel>, LoadError> {
    let device = device::open(on)?;
    let failed = |reason: ModelError| match reason {
        ModelError::Device(error) => LoadError::DeviceLost { device: on.clone(), why: error.to_string() },
        reason => LoadError::BadModel { model: source.to_owned(), reason: Box::new(reason) },
    };
    let read = || -> Result<LoadedWhisper, ModelError> {
        let DescribedWhisper { files, spec, facts, mel } = DescribedWhisper::open(source)?;
        let (expected, kinds) = checked(&files, &spec)?;
        let target = WeightTarget::of(device, &kinds, kv)
            .map_err(|reason| ModelError::Device(DecoderError::Step(reason.to_string())))?;
        let mut reader = WeightReader::new(&files, &target, expected, progress);
        let encoder = WhisperEncoder::read(&mut reader, &spec, &target)?;
        let decoder = WhisperDecoder::read(&mut reader, &spec, &target)?;
        let weight_bytes = reader.bytes();
        drop(reader);
        let layers = spec.decoder.layers as u64;
        let wide = (spec.places * spec.hidden * size_of::<f32>()) as u64;
        let of_window = layers * (decoder.shape.bytes(spec.places) + decoder.shape.bytes(spec.tokens)) + wide;
        let windows = windows.max(1);
        let place =
            PlaceUse::new(on.clone(), 0..spec.encoder.layers + spec.decoder.layers, (weight_bytes, 0), (COUNTED, 0));
        let info = SpeechInfo {
            vocab_size: spec.vocabulary,
            mel,
            frames: 2 * spec.places,
            most_tokens: spec.tokens,
            tokens: facts.tokens,
            languages: facts.languages,
            knows_words: !facts.aligned.is_empty(),
            smoothed: facts.smoothed,
            most_windows: windows,
            weight_bytes,
            kv_bytes: of_window * windows as u64,
            // The widest rows of the encoder, and what they are made of.
            workspace_bytes: (spec.places * (8 * spec.hidden + spec.encoder.inner) * size_of::<f32>()) as u64,
        };
        Ok(LoadedWhisper {
            info,
            aligned: facts.aligned,
            encoder,
            decoder,
            places: [place].into(),
            held: Arc::default(),
            on_cpu: target.device.is_cpu(),
            spec,
        })
    };
    Ok(Box::new(read().map_err(failed)?))
}

/// A model's description, and its files.
struct DescribedWhisper {
    files: ModelFiles,
    spec: WhisperSpec,
    facts: SpeechFacts,
    mel: MelShape,
}

impl DescribedWhisper {
    fn open(source: &Path) -> Result<Self, ModelError> {
        let folder = model_folder(source);
        let object = |bytes: &[u8]| {
            serde_json::from_slice::<Map<String, Value>>(bytes).map_err(|error| bad(format!("config.json: {error}")))
        };
        let (files, names, config, spec) = if let Some(path) = gguf_file(source)? {
            let gguf = GgufModel::open(&path)?;
            let config = file::<Map<String, Value>>(&folder.join("config.json"))?.unwrap_or_default();
            let files = ModelFiles::of_gguf(GgufModel::open(&path)?);
            let names = WhisperNames::of(&files);
            let is_whisper = config.get("model_type").and_then(Value::as_str) == Some("whisper");
            let spec = match is_whisper {
                true => WhisperSpec::from_config(&config)?,
                false => WhisperSpec::from_shapes(&files, names, &gguf)?,
            };
            (files, names, config, spec)
        } else {
            let (files, config) = ModelFiles::plain(source)?;
            let config = object(&config)?;
            let spec = WhisperSpec::from_config(&config)?;
            let names = WhisperNames::of(&files);
            (files, names, config, spec)
        };
        let parts = spec.parts().into_iter().map(|(name, shape)| {
            let place = PartLocation::whole(names.stored(&name));
            (name, place, shape)
        });
        // Files may have neither the waves of places nor biases of keys.
        let positions = "encoder.embed_positions.weight".to_owned();
        let place = PartLocation::whole(names.stored(&positions));
        let positions = (positions, place, vec![spec.places, spec.hidden]);
        let files = files.placing(parts.chain([positions]).collect::<Vec<_>>());
        let facts = SpeechFacts::read(folder, &config, &spec)?;
        let mel = mel_shape(folder, &spec)?;
        Ok(Self { files, spec, facts, mel })
    }
}

fn mel_shape(folder: &Path, spec: &WhisperSpec) -> Result<MelShape, ModelError> {
    let told: Preprocessor = file(&folder.join("preprocessor_config.json"))?.unwrap_or_default();
    let wrong = |what: String| Err(bad(format!("preprocessor_config.json: {what}")));
    if let Some(rate) = told.sampling_rate.filter(|rate| *rate != RATE) {
        return wrong(format!("sampling_rate is {rate}; {RATE} is known"));
    }
    if let Some(size) = told.feature_size.filter(|size| *size != spec.bins) {
        return wrong(format!("feature_size is {size}, and the model reads {}", spec.bins));
    }
    let (window, hop) = (told.n_fft.unwrap_or(WINDOW), told.hop_length.unwrap_or(HOP));
    if !(16..=1 << 14).contains(&window) || !(1..=window).contains(&hop) {
        return wrong(format!("n_fft is {window} and hop_length {hop}"));
    }
    Ok(MelShape { bins: spec.bins, window, hop })
}

/// The bytes of all parts, and the types of matrices. A part that is missing or has another shape is an error.
fn checked(files: &ModelFiles, spec: &WhisperSpec) -> Result<(u64, Vec<TensorType>), ModelError> {
    let (mut bytes, mut kinds) = (0, Vec::new());
    for (name, shape) in spec.parts() {
        if name.ends_with("k_proj.bias") && !files.has(&name) {
            continue;
        }
        let stored = files.get(&name)?;
        if stored.shape != shape {
            let what = format!("has the shape {:?} in place of {shape:?}", stored.shape);
            return Err(ModelError::Tensor { name: files.spelled(&name).into_owned(), what });
        }
        bytes += stored.len();
        if shape.len() == 2 && !name.contains("positions") {
            kinds.push(stored.kind);
        }
    }
    Ok((bytes, kinds))
}

impl LoadedWhisper {
    /// On one of the threads that share the products.
    fn computed<T: Send>(&self, work: impl FnOnce() -> CandleResult<T> + Send) -> Result<T, DecoderError> {
        let computed = if self.on_cpu { rayon::scope(|_| work()) } else { work() };
        computed.map_err(|error| device::failure(&error))
    }

    fn window(window: &HeardWindow) -> Result<Arc<HeldWindow>, DecoderError> {
        let window = Arc::clone(&window.0).downcast::<HeldWindow>();
        window.map_err(|_| DecoderError::Step("the window is another model's".to_owned()))
    }

    fn check(&self, past: usize, tokens: &[u32]) -> Result<(), DecoderError> {
        let unknown = tokens.iter().any(|token| *token as usize >= self.spec.vocabulary);
        if tokens.is_empty() || unknown || past + tokens.len() > self.spec.tokens {
            return Err(DecoderError::Step("a text is empty, too long, or has an unknown token".to_owned()));
        }
        Ok(())
    }
}

impl SpeechModel for LoadedWhisper {
    fn info(&self) -> &SpeechInfo {
        &self.info
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        Arc::clone(&self.places)
    }

    fn hear(&self, mel: &[f32], pause: AtSpeechPause<'_>) -> Result<HeardWindow, DecoderError> {
        if mel.len() != self.info.mel.bins * self.info.frames {
            return Err(DecoderError::Step("a spectrogram has another size than the model reads".to_owned()));
        }
        let (kv, bytes) = self.computed(|| {
            let rows = self.encoder.forward(mel, pause)?;
            self.decoder.window(rows, pause)
        })?;
        let mut held = WindowBytes::new(&self.held, &self.places);
        held.add(bytes);
        Ok(HeardWindow(Arc::new(HeldWindow { kv, _held: held })))
    }

    fn begin(&self, window: &HeardWindow) -> Result<SpeechText, DecoderError> {
        let (window, held) = (Self::window(window)?, WindowBytes::new(&self.held, &self.places));
        Ok(SpeechText(Box::new(HeldText { window, layers: self.decoder.text(), past: 0, held })))
    }

    fn step(&self, steps: &mut [SpeechStep<'_>], pause: AtSpeechPause<'_>) -> Result<Vec<Vec<f32>>, DecoderError> {
        let mut texts = Vec::with_capacity(steps.len());
        let (mut wanted, mut counts, mut first) = (Vec::new(), Vec::new(), 0);
        for step in steps.iter_mut() {
            let Some(text) = step.text.0.downcast_mut::<HeldText>() else {
                return Err(DecoderError::Step("the text is another model's".to_owned()));
            };
            self.check(text.past, step.tokens)?;
            wanted.extend(step.wanted.iter().map(|at| (first + at) as u32));
            counts.push(step.wanted.len());
            first += step.tokens.len();
            texts.push((text, step.tokens));
        }
        let logits = self.computed(|| {
            let mut rows: Vec<TextRows<'_>> = texts
                .iter_mut()
                .map(|(text, tokens)| {
                    let HeldText { window, layers, past, .. } = &mut **text;
                    TextRows { window: &window.kv, layers, past: *past, tokens }
                })
                .collect();
            let (x, bytes) = self.decoder.forward(&mut rows, None, pause)?;
            for ((text, tokens), bytes) in texts.iter_mut().zip(bytes) {
                text.past += tokens.len();
                text.held.add(bytes);
            }
            self.decoder.logits(&x, &wanted)
        })?;
        let mut logits = logits.as_slice();
        let of_text = |count: usize| {
            let (here, behind) = logits.split_at(count * self.spec.vocabulary);
            logits = behind;
            here.to_vec()
        };
        Ok(counts.into_iter().map(of_text).collect())
    }

    fn attended(
        &self,
        window: &HeardWindow,
        tokens: &[u32],
        pause: AtSpeechPause<'_>,
    ) -> Result<(Vec<f32>, Vec<f32>), DecoderError> {
        let window = Self::window(window)?;
        self.check(0, tokens)?;
        self.computed(|| {
            let mut layers = self.decoder.text();
            let mut watched = Watched { heads: &self.aligned, seen: Vec::new() };
            let mut rows = [TextRows { window: &window.kv, layers: &mut layers, past: 0, tokens }];
            let (x, _) = self.decoder.forward(&mut rows, Some(&mut watched), pause)?;
            let all: Vec<u32> = (0..tokens.len() as u32).collect();
            let attention = watched.seen.into_iter().flat_map(|(_, seen)| seen).collect();
            Ok((attention, self.decoder.logits(&x, &all)?))
        })
    }
}
