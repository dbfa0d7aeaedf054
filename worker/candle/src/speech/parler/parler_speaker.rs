//! A loaded model: from tokens to samples, frame by frame.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Result as CandleResult, Tensor};
use model_boss_engine::{
    DecoderError, PartEnd, PlaceUse, Speaker, SpeakerInfo, SpeakerMemory, SpeechListener, SpokenPart, TorchGenerator,
};
use model_boss_kernels::KvElement;
use model_boss_protocol::{DeviceId, SpeechVoice};
use model_boss_weights::model_folder;

use super::delayed_frames::{DelayedFrames, WholeFrame};
use super::frame_writer::FrameWriter;
use super::parler_generation::ParlerGeneration;
use super::parler_spec::ParlerSpec;
use super::parler_text::ParlerText;
use super::sounding::Sounding;
use crate::device;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::layers::linear::Linear;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;
use crate::speech::codec::Dac;
use crate::speech::drawing::CodeDraw;
use crate::speech::t5::{T5Encoder, T5Texts};
use crate::speech::weights::SpeechWeights;

/// Characters of a part: well below the thirty seconds that the model was trained on.
const LONGEST_PART: usize = 240;

/// The description of requests without one.
const USUAL_DESCRIPTION: &str = "A clear voice speaks at a moderate speed, recorded closely and without any noise.";

/// Bytes of activations beside keys and values: some pieces of sound.
const WORKSPACE: u64 = 256 << 20;

/// A model with its weights.
pub(in crate::speech) struct ParlerSpeaker {
    info: SpeakerInfo,
    places: Arc<[PlaceUse]>,
    spec: ParlerSpec,
    generation: ParlerGeneration,
    text: ParlerText,
    usual: Vec<u32>,
    encoder: T5Encoder,
    /// From the encoder's width to the decoder's; none where they are the same.
    widened: Option<Linear>,
    writer: FrameWriter,
    codec: Dac,
    device: Device,
}

/// The rows of the description of a request, which its parts share.
struct ReadDescription(Tensor);

/// Loads the folder of a model.
pub(in crate::speech) fn load(
    source: &Path,
    (on, device): (&DeviceId, &Device),
    progress: &mut dyn FnMut(f32),
) -> Result<ParlerSpeaker, ModelError> {
    let (files, config) = ModelFiles::plain(source)?;
    let spec = ParlerSpec::from_config(&config)?;
    let folder = model_folder(source);
    let (text, generation) = (ParlerText::read(folder, &spec)?, ParlerGeneration::read(folder, &spec.decoder)?);
    let usual = text.description(USUAL_DESCRIPTION).unwrap_or_default();
    let target = WeightTarget { device: device.clone(), dtype: SpeechWeights::TYPE, cached: KvElement::F32 };
    let expected = files.paths().iter().filter_map(|path| path.metadata().ok()).map(|about| about.len()).sum();
    let mut reader = WeightReader::new(&files, &target, expected, progress);
    let mut weights = SpeechWeights { reader: &mut reader, device };
    let encoder = T5Encoder::read(&mut weights, "text_encoder.", (&spec.text, T5Texts::Short), &target)?;
    let [width, from] = [spec.decoder.width, spec.text.d_model];
    let widened = if width == from { None } else { Some(weights.product("enc_to_dec_proj", [width, from])?) };
    let writer = FrameWriter::read(&mut weights, &spec, &target)?;
    let codec = Dac::read(&mut weights, "audio_encoder", &spec.codec)?;
    let weight_bytes = reader.bytes();
    let place = PlaceUse::new(on.clone(), 0..spec.decoder.layers, (weight_bytes, 0), (0, 0));
    let kept = 2 * spec.decoder.layers * spec.decoder.kv_heads() * (width / spec.decoder.heads) * size_of::<f32>();
    let info = SpeakerInfo {
        rate: spec.codec.sampling_rate,
        voices: vec![SpeechVoice { id: "default".to_owned(), name: None, language: None }],
        weight_bytes,
        // Keys and values of the longest part with its text, and those of a layer twice while they grow.
        workspace_bytes: (kept * (generation.columns + LONGEST_PART)) as u64 / 4 * 5 + WORKSPACE,
        longest_part: LONGEST_PART,
        has_speeds: false,
    };
    drop(reader);
    let (places, device) = ([place].into(), device.clone());
    Ok(ParlerSpeaker { info, places, spec, generation, text, usual, encoder, widened, writer, codec, device })
}

impl ParlerSpeaker {
    /// The rows of a description, as the decoder sees them.
    fn described(&self, tokens: &[u32]) -> CandleResult<Tensor> {
        let states = self.encoder.states(tokens)?;
        self.widened.as_ref().map_or(Ok(states.clone()), |widened| widened.forward(&states))
    }

    fn spoken(
        &self,
        part: &SpokenPart<'_>,
        description: &Tensor,
        seed: u64,
        listener: &mut dyn SpeechListener,
    ) -> CandleResult<Option<usize>> {
        let decoder = &self.spec.decoder;
        let mut memory = self.writer.begin(description, part.symbols)?;
        let mut frames = DelayedFrames::new(&self.generation, decoder.num_codebooks, self.spec.codec.codebook_size);
        let mut draw = CodeDraw::new(&self.generation.rules, seed, 0, decoder.codes);
        let mut sounding = Sounding::new(&self.codec);
        let mut is_over = false;
        while !is_over {
            if !listener.pause(self) {
                return Ok(None);
            }
            let logits = self.writer.step(&frames.read(), &mut memory)?;
            match frames.write(logits, |logits| draw.code_of(logits))? {
                WholeFrame::Heard(frame) => sounding.push(frame),
                WholeFrame::Nothing => {}
                WholeFrame::End => is_over = true,
            }
            is_over |= !frames.has_room();
            let Some(samples) = sounding.samples(is_over, &mut || listener.pause(self))? else { return Ok(None) };
            if !samples.is_empty() {
                listener.hear(&samples);
            }
        }
        Ok(Some(sounding.frames()))
    }
}

impl Speaker for ParlerSpeaker {
    fn info(&self) -> &SpeakerInfo {
        &self.info
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        Arc::clone(&self.places)
    }

    fn symbols(&self, text: &str, phonemes: bool) -> Result<Vec<u32>, String> {
        if phonemes {
            return Err("this model reads words: leave 'phonemes' out".to_owned());
        }
        self.text.prompt(text)
    }

    fn instructions(&self, text: &str) -> Result<Vec<u32>, String> {
        self.text.description(text)
    }

    fn speak(
        &self,
        part: &SpokenPart<'_>,
        memory: &mut SpeakerMemory,
        random: &mut TorchGenerator,
        listener: &mut dyn SpeechListener,
    ) -> Result<PartEnd, DecoderError> {
        let refused = |what: &str| DecoderError::Step(what.to_owned());
        let outside = |tokens: &[u32], count: usize| tokens.iter().any(|token| *token as usize >= count);
        let description = if part.instructions.is_empty() { &self.usual } else { part.instructions };
        if part.symbols.is_empty() || outside(part.symbols, self.spec.prompt_tokens) {
            return Err(refused("the text has tokens that the model does not have"));
        }
        if part.voice >= self.info.voices.len() {
            return Err(refused("the model has no such voice"));
        }
        let known = memory.take().and_then(|known| known.downcast::<ReadDescription>().ok());
        let seed = random.number();
        let speak = || -> CandleResult<(Tensor, Option<usize>)> {
            let states = known.map_or_else(|| self.described(description), |known| Ok(known.0))?;
            let frames = self.spoken(part, &states, seed, listener)?;
            Ok((states, frames))
        };
        // On one of the threads that share the products.
        let spoken = if self.device.is_cpu() { rayon::scope(|_| speak()) } else { speak() };
        let (states, frames) = spoken.map_err(|error| device::failure(&error))?;
        *memory = Some(Box::new(ReadDescription(states)) as Box<dyn Any + Send + Sync>);
        Ok(frames.map_or(PartEnd::Stopped, |frames| PartEnd::Spoken { frames }))
    }
}
