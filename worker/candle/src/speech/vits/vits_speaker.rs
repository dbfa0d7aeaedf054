//! A loaded model: from symbols to samples.

use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Result as CandleResult, Tensor};
use model_boss_engine::{
    DecoderError, PartEnd, PlaceUse, Speaker, SpeakerInfo, SpeakerMemory, SpeechListener, SpokenPart, TorchGenerator,
};
use model_boss_kernels::KvElement;
use model_boss_protocol::{DeviceId, SpeechVoice};
use model_boss_weights::model_folder;

use super::durations::Durations;
use super::flow::CouplingFlow;
use super::hifi_gan::HifiGan;
use super::spec::VitsSpec;
use super::symbols::Symbols;
use super::text_encoder::TextEncoderLayers;
use crate::device;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;
use crate::speech::weights::SpeechWeights;

/// The most frames of a part: what comes behind them is left out, since symbols of such lengths are noise.
const MOST_FRAMES: usize = 16_384;

/// The most characters of a part. Attention is between all pairs of symbols.
const LONGEST_PART: usize = 300;

/// Bytes of activations beside the weights, at the most: some pieces of sound, and the scores of a part.
const WORKSPACE: u64 = 128 << 20;

/// A VITS model with its weights.
pub(in crate::speech) struct VitsSpeaker {
    info: SpeakerInfo,
    places: Arc<[PlaceUse]>,
    symbols: Symbols,
    spec: VitsSpec,
    device: Device,
    text: TextEncoderLayers,
    durations: Durations,
    flow: CouplingFlow,
    decoder: HifiGan,
    /// A vector for each voice, `[voices, width]`.
    speakers: Option<Tensor>,
}

/// Loads the folder of a model.
pub(in crate::speech) fn load(
    source: &Path,
    (on, device): (&DeviceId, &Device),
    progress: &mut dyn FnMut(f32),
) -> Result<VitsSpeaker, ModelError> {
    let (files, config) = ModelFiles::plain(source)?;
    let spec = VitsSpec::from_config(&config)?;
    let symbols = Symbols::read(model_folder(source), spec.vocab_size)?;
    let target = WeightTarget { device: device.clone(), dtype: SpeechWeights::TYPE, cached: KvElement::F32 };
    let expected = files.paths().iter().filter_map(|path| path.metadata().ok()).map(|about| about.len()).sum();
    let mut reader = WeightReader::new(&files, &target, expected, progress);
    let mut weights = SpeechWeights { reader: &mut reader, device };
    let text = TextEncoderLayers::read(&mut weights, &spec)?;
    let durations = Durations::read(&mut weights, &spec)?;
    let flow = CouplingFlow::read(&mut weights, &spec)?;
    let decoder = HifiGan::read(&mut weights, &spec)?;
    let shape = |size| [spec.num_speakers, size];
    let speakers = spec.speaker().map(|size| weights.tensor("embed_speaker.weight", &shape(size))).transpose()?;
    let weight_bytes = reader.bytes();
    let layers = text.len() + spec.prior_encoder_num_flows + spec.upsample_rates.len();
    let place = PlaceUse::new(on.clone(), 0..layers, (weight_bytes, 0), (0, 0));
    let voice = |at: usize| SpeechVoice {
        id: if speakers.is_some() { at.to_string() } else { "default".to_owned() },
        name: None,
        language: symbols.language().map(str::to_owned),
    };
    let info = SpeakerInfo {
        rate: spec.sampling_rate,
        voices: (0..speakers.as_ref().map_or(1, |_| spec.num_speakers)).map(voice).collect(),
        weight_bytes,
        workspace_bytes: WORKSPACE,
        longest_part: LONGEST_PART,
        has_speeds: true,
    };
    let (device, places) = (device.clone(), [place].into());
    Ok(VitsSpeaker { info, places, symbols, spec, device, text, durations, flow, decoder, speakers })
}

impl VitsSpeaker {
    /// The frames in which each symbol is heard.
    fn frames(&self, logarithms: &[f32], speed: f32) -> Vec<u32> {
        let slowness = 1.0 / (self.spec.speaking_rate * speed);
        let (mut frames, mut symbol) = (Vec::new(), 0_u32);
        for logarithm in logarithms {
            // The cast takes what is no number to 0.
            let count = (logarithm.exp() * slowness).ceil() as usize;
            frames.extend(std::iter::repeat_n(symbol, count.min(MOST_FRAMES - frames.len())));
            symbol += 1;
        }
        frames
    }

    fn spoken(
        &self,
        part: &SpokenPart<'_>,
        random: &mut TorchGenerator,
        listener: &mut dyn SpeechListener,
    ) -> CandleResult<PartEnd> {
        let speaker = match &self.speakers {
            Some(speakers) => Some(speakers.narrow(0, part.voice, 1)?),
            None => None,
        };
        let encoded = self.text.forward(part.symbols)?;
        if !listener.pause(self) {
            return Ok(PartEnd::Stopped);
        }
        let logarithms = self.durations.logarithms(&encoded.states, speaker.as_ref(), random)?;
        let frames = self.frames(&logarithms, part.speed);
        let heard = frames.len();
        // A part without any length is one frame of silence's latents, as in the reference.
        let (means, spreads) = if frames.is_empty() {
            let none = Tensor::zeros((1, self.spec.flow_size), SpeechWeights::TYPE, &self.device)?;
            (none.clone(), none)
        } else {
            let frames = Tensor::from_vec(frames, heard, &self.device)?;
            (encoded.means.index_select(&frames, 0)?, encoded.spreads.index_select(&frames, 0)?)
        };
        let (length, width) = means.dims2()?;
        let noise = match length > 1 && width > 1 {
            // The reference's tensor lies in memory as this one does, with its dimensions turned.
            true => random.normals_in_turn(length * width),
            false => random.normals(length * width),
        };
        let noise = Tensor::from_vec(noise, (length, width), &self.device)?;
        let latents = (means + ((noise * spreads.exp()?)? * f64::from(self.spec.noise_scale))?)?;
        let mut go_on = || listener.pause(self);
        let Some(latents) = self.flow.invert(latents, speaker.as_ref(), &mut go_on)? else {
            return Ok(PartEnd::Stopped);
        };
        let listener = std::cell::RefCell::new(listener);
        let mut hear = |samples: &[f32]| listener.borrow_mut().hear(samples);
        let mut go_on = || listener.borrow_mut().pause(self);
        let whole = self.decoder.samples(&latents, speaker.as_ref(), &mut hear, &mut go_on)?;
        Ok(if whole { PartEnd::Spoken { frames: length } } else { PartEnd::Stopped })
    }
}

impl Speaker for VitsSpeaker {
    fn info(&self) -> &SpeakerInfo {
        &self.info
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        Arc::clone(&self.places)
    }

    fn symbols(&self, text: &str, phonemes: bool) -> Result<Vec<u32>, String> {
        self.symbols.of(text, phonemes)
    }

    fn speak(
        &self,
        part: &SpokenPart<'_>,
        _memory: &mut SpeakerMemory,
        random: &mut TorchGenerator,
        listener: &mut dyn SpeechListener,
    ) -> Result<PartEnd, DecoderError> {
        let is_wrong = |symbol: &&u32| **symbol as usize >= self.spec.vocab_size;
        if part.symbols.is_empty() || part.symbols.iter().any(|symbol| is_wrong(&symbol)) {
            return Err(DecoderError::Step("the text has symbols that the model does not have".to_owned()));
        }
        if part.voice >= self.info.voices.len() || !(part.speed.is_finite() && part.speed > 0.0) {
            return Err(DecoderError::Step("the model has no such voice or speed".to_owned()));
        }
        // On one of the threads that share the products.
        let spoken = match self.device.is_cpu() {
            true => rayon::scope(|_| self.spoken(part, random, listener)),
            false => self.spoken(part, random, listener),
        };
        spoken.map_err(|error| device::failure(&error))
    }
}
