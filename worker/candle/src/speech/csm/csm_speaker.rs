//! A loaded model: from tokens to samples, frame by frame.

use std::any::Any;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Result as CandleResult, Tensor};
use model_boss_engine::{
    DecoderError, PartEnd, PlaceUse, Speaker, SpeakerInfo, SpeakerMemory, SpeechListener, SpokenPart, TorchGenerator,
};
use model_boss_kernels::KvElement;
use model_boss_protocol::{DeviceId, SpeechVoice};
use model_boss_weights::model_folder;

use super::csm_generation::CsmGeneration;
use super::csm_prompt::CsmPrompt;
use super::csm_spec::CsmSpec;
use super::frame_decoder::FrameDecoder;
use crate::device;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::layers::linear::Linear;
use crate::layers::norm::Norm;
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;
use crate::speech::causal::{CausalLayers, CausalMemory};
use crate::speech::codec::Mimi;
use crate::speech::drawing::CodeDraw;
use crate::speech::weights::SpeechWeights;

/// Characters of a part: what is said in ten seconds, which is as long as a part may be by the model's own settings.
const LONGEST_PART: usize = 120;

/// Parts before one that the voice is kept by.
const REMEMBERED: usize = 2;

/// Frames that become samples together, behind the first one.
const AT_ONCE: usize = 4;

/// Speakers. The model knows any number, and most recordings that it heard have two.
const VOICES: usize = 2;

/// A model with its weights.
pub(in crate::speech) struct CsmSpeaker {
    info: SpeakerInfo,
    places: Arc<[PlaceUse]>,
    spec: CsmSpec,
    generation: CsmGeneration,
    prompt: CsmPrompt,
    target: WeightTarget,
    /// Rows of the tokens of texts.
    words: Matrix,
    /// Rows of the codes of all codebooks, one behind the other: those of both decoders.
    codes: Matrix,
    frame_codes: Matrix,
    layers: CausalLayers,
    norm: Norm,
    /// The first codebook's.
    head: Linear,
    frame: FrameDecoder,
    codec: Mimi,
}

/// Tokens and frames of the last parts, by which the voice stays the same.
#[derive(Default)]
struct SaidBefore(VecDeque<(Vec<u32>, Vec<Vec<u32>>)>);

/// Loads the folder of a model.
pub(in crate::speech) fn load(
    source: &Path,
    (on, device): (&DeviceId, &Device),
    progress: &mut dyn FnMut(f32),
) -> Result<CsmSpeaker, ModelError> {
    let (files, config) = ModelFiles::plain(source)?;
    let spec = CsmSpec::from_config(&config)?;
    let folder = model_folder(source);
    let (prompt, generation) = (CsmPrompt::read(folder, &spec.tokens)?, CsmGeneration::read(folder)?);
    let target = WeightTarget { device: device.clone(), dtype: SpeechWeights::TYPE, cached: KvElement::F32 };
    let expected = files.paths().iter().filter_map(|path| path.metadata().ok()).map(|about| about.len()).sum();
    let mut reader = WeightReader::new(&files, &target, expected, progress);
    let mut weights = SpeechWeights { reader: &mut reader, device };
    let (width, tokens) = (spec.backbone.width, &spec.tokens);
    let words = weights.rows("embed_text_tokens.weight", [tokens.words, width])?;
    // Rows that both decoders have are in the files under either name.
    let names = ["backbone_model.embed_tokens.embed_audio_tokens.weight", "depth_decoder.model.embed_tokens.weight"];
    let shape = [tokens.num_codebooks * tokens.codes, width];
    let codes = weights.rows(if weights.has(names[0]) { names[0] } else { names[1] }, shape)?;
    let frame_codes = if tokens.tie_codebooks_embeddings { codes.clone() } else { weights.rows(names[1], shape)? };
    let layers = CausalLayers::read(&mut weights, "backbone_model.layers", &spec.backbone)?;
    let norm = weights.norm("backbone_model.norm", width, spec.backbone.norm)?;
    let head = weights.product("lm_head", [tokens.codes, width])?;
    let frame = FrameDecoder::read(&mut weights, &spec)?;
    let codec = Mimi::read(&mut weights, "codec_model", &spec.codec)?;
    let weight_bytes = reader.bytes();
    let place = PlaceUse::new(on.clone(), 0..spec.backbone.layers, (weight_bytes, 0), (0, 0));
    let voice = |at: usize| SpeechVoice { id: at.to_string(), name: None, language: Some("en".to_owned()) };
    let per_position = 2 * spec.backbone.layers * spec.backbone.kv_heads * spec.backbone.head * size_of::<f32>();
    let info = SpeakerInfo {
        rate: spec.codec.sampling_rate,
        voices: (0..VOICES).map(voice).collect(),
        weight_bytes,
        // Keys and values of the longest part, twice while they grow, and some rows of the widest layer.
        workspace_bytes: (2 * per_position * tokens.positions) as u64 + (64 << 20),
        longest_part: LONGEST_PART,
        has_speeds: false,
    };
    drop(reader);
    let places = [place].into();
    Ok(CsmSpeaker {
        info,
        places,
        spec,
        generation,
        prompt,
        target,
        words,
        codes,
        frame_codes,
        layers,
        norm,
        head,
        frame,
        codec,
    })
}

impl CsmSpeaker {
    /// The row of a code for the decoder over codebooks, `[1, width]`.
    fn code_row(&self, book: usize, code: u32) -> CandleResult<Tensor> {
        self.frame_codes.rows(&[(book * self.spec.tokens.codes) as u32 + code], &self.target)
    }

    /// The row of a frame, `[1, width]`.
    fn frame_row(&self, codes: &[u32]) -> CandleResult<Tensor> {
        let at = |(book, code): (usize, &u32)| (book * self.spec.tokens.codes) as u32 + code;
        let codes: Vec<u32> = codes.iter().enumerate().map(at).collect();
        self.codes.rows(&codes, &self.target)?.sum_keepdim(0)
    }

    /// The rows before the first frame: those of what was said before, and those of the words.
    fn prompt_rows(&self, before: &SaidBefore, tokens: &[u32]) -> CandleResult<Tensor> {
        let room = self.spec.tokens.positions.saturating_sub(tokens.len() + self.generation.frames);
        let length = |(tokens, frames): &(Vec<u32>, Vec<Vec<u32>>)| tokens.len() + frames.len() + 1;
        // The latest parts that there is room for.
        let mut taken = 0;
        let fits = before.0.iter().rev().take_while(|part| {
            taken += length(part);
            taken <= room
        });
        let first = before.0.len() - fits.count();
        let end = vec![self.spec.tokens.codebook_eos_token_id; self.spec.tokens.num_codebooks];
        let mut rows = Vec::new();
        for (tokens, frames) in before.0.iter().skip(first) {
            rows.push(self.words.rows(tokens, &self.target)?);
            for frame in frames.iter().chain([&end]) {
                rows.push(self.frame_row(frame)?);
            }
        }
        rows.push(self.words.rows(tokens, &self.target)?);
        Tensor::cat(&rows, 0)
    }

    fn spoken(
        &self,
        tokens: &[u32],
        before: &SaidBefore,
        seed: u64,
        listener: &mut dyn SpeechListener,
    ) -> CandleResult<Option<Vec<Vec<u32>>>> {
        let codes = self.spec.codec.codes().min(self.spec.tokens.codes);
        let mut first = CodeDraw::new(&self.generation.first, seed, 0, codes);
        let mut others = CodeDraw::new(&self.generation.others, seed, 1, codes);
        let end = self.spec.tokens.codebook_eos_token_id;
        let mut memory: CausalMemory = self.layers.memory();
        let mut sound = self.codec.memory();
        let (mut frames, mut heard): (Vec<Vec<u32>>, usize) = (Vec::new(), 0);
        let mut rows = self.prompt_rows(before, tokens)?;
        while frames.len() < self.generation.frames {
            if !listener.pause(self) {
                return Ok(None);
            }
            let stream = self.layers.forward(&rows, &mut memory)?;
            let stream = self.norm.forward(&stream.narrow(0, stream.dim(0)? - 1, 1)?.contiguous()?)?;
            let code = first.code(&self.head.forward(&stream)?)?;
            let frame = self.frame.codes(&stream, code, |book, code| self.code_row(book, code), &mut others)?;
            let is_over = frame.iter().rev().skip(1).all(|code| *code == end);
            // As in the reference a frame is heard unless it is an end in every codebook.
            if !is_over || frame.last() != Some(&end) {
                rows = self.frame_row(&frame)?;
                frames.push(frame);
            }
            if is_over {
                break;
            }
            if heard == 0 || frames.len() - heard == AT_ONCE {
                listener.hear(&self.codec.samples(&frames[heard..], &mut sound)?);
                heard = frames.len();
            }
        }
        if heard < frames.len() {
            listener.hear(&self.codec.samples(&frames[heard..], &mut sound)?);
        }
        Ok(Some(frames))
    }
}

impl Speaker for CsmSpeaker {
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
        self.prompt.words(text)
    }

    fn speak(
        &self,
        part: &SpokenPart<'_>,
        memory: &mut SpeakerMemory,
        random: &mut TorchGenerator,
        listener: &mut dyn SpeechListener,
    ) -> Result<PartEnd, DecoderError> {
        let refused = |what: &str| DecoderError::Step(what.to_owned());
        if part.symbols.is_empty() || part.symbols.iter().any(|word| *word as usize >= self.spec.tokens.words) {
            return Err(refused("the text has tokens that the model does not have"));
        }
        if part.voice >= self.info.voices.len() {
            return Err(refused("the model has no such voice"));
        }
        let tokens = self.prompt.spoken(part.voice, part.symbols).map_err(|why| refused(&why))?;
        if tokens.len() + self.generation.frames > self.spec.tokens.positions {
            return Err(refused("the text is too long for the model"));
        }
        let mut said = memory.take().and_then(|said| said.downcast::<SaidBefore>().ok()).unwrap_or_default();
        let seed = random.number();
        // On one of the threads that share the products.
        let spoken = match self.target.device.is_cpu() {
            true => rayon::scope(|_| self.spoken(&tokens, &said, seed, listener)),
            false => self.spoken(&tokens, &said, seed, listener),
        };
        let Some(frames) = spoken.map_err(|error| device::failure(&error))? else { return Ok(PartEnd::Stopped) };
        let count = frames.len();
        said.0.push_back((tokens, frames));
        if said.0.len() > REMEMBERED {
            said.0.pop_front();
        }
        *memory = Some(said as Box<dyn Any + Send + Sync>);
        Ok(PartEnd::Spoken { frames: count })
    }
}
