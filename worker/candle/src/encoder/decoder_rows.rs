//! Models of decoders' layers as encoders: the rows behind the last norm become one vector (Qwen3-Embedding: Zhang et
//! al., 2025, arXiv 2506.05176; E5-Mistral: Wang et al., 2023, arXiv 2401.00368). Where tokens see those behind them,
//! texts are computed whole (EmbeddingGemma: Vera et al., 2025, arXiv 2509.20354).

use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;
use model_boss_engine::{
    BLOCK_TOKENS, Decoder, DecoderError, EncodedForm, EncoderInfo, EncoderText, LabelShares, PairForm, PlaceUse,
    TextEncoder, TextSteps,
};
use model_boss_weights::gguf::GgufModel;
use model_boss_weights::{gguf_file, model_folder};

use super::gguf;
use super::pooling::Pooling;
use super::sentence_folder::SentenceFolder;
use super::steps::{LoadedStep, loaded_steps, shaped};
use crate::decoder::spec_decoder::SpecDecoder;
use crate::device;
use crate::error::{LoadError, ModelError};
use crate::files::ModelFiles;
use crate::load::{DecoderHead, read_over};
use crate::plan::options::{DecoderLoadOptions, DeviceOptions};

/// A decoder that gives vectors.
struct DecoderEmbedder {
    decoder: SpecDecoder,
    steps: Vec<LoadedStep>,
    info: EncoderInfo,
}

/// Loads a decoder that turns texts into vectors, as [`crate::load_over`] does one that writes. Its last product is not
/// needed.
pub fn load_decoder_embedder(
    source: &Path,
    places: &[DeviceOptions],
    options: &DecoderLoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn TextEncoder>, LoadError> {
    let bad = |reason: ModelError| LoadError::BadModel { model: source.to_owned(), reason: Box::new(reason) };
    let folder = described(source).map_err(bad)?;
    let decoder = read_over(source, places, options, (DecoderHead::LeftOut, &|_, _| Ok(None)), progress)?;
    let (hidden, vocabulary, target) = decoder.rows_of();
    let steps = loaded_steps(&folder, target).map_err(bad)?;
    let facts = decoder.info();
    let info = EncoderInfo {
        vocab_size: vocabulary,
        max_tokens: folder.max_tokens.unwrap_or(usize::MAX).min(facts.context_length),
        width: folder.width(hidden),
        labels: Vec::new(),
        shares: LabelShares::default(),
        pairs: PairForm::Joined,
        weight_bytes: facts.weight_bytes,
        workspace_bytes: facts.workspace_bytes,
        kv_tokens: facts.kv_blocks.checked_mul(BLOCK_TOKENS),
        prompts: folder.prompts,
        default_prompt: folder.default_prompt,
        leaves_prompts_out: folder.leaves_prompts_out,
        tasks: Vec::new(),
    };
    Ok(Box::new(DecoderEmbedder { decoder, steps, info }))
}

/// The steps that the model's files name. Without any, the vector of the last token, or the mean of tokens that see all
/// others.
fn described(source: &Path) -> Result<SentenceFolder, ModelError> {
    let (_, spec) = ModelFiles::open(source)?;
    let otherwise = if spec.sees_behind() { Pooling::Mean } else { Pooling::Last };
    match gguf_file(source)? {
        Some(file) => gguf::described(&file, &GgufModel::open(&file)?, otherwise),
        None => SentenceFolder::read(model_folder(source), otherwise),
    }
}

impl DecoderEmbedder {
    fn vectors(&mut self, texts: &[EncoderText<'_>], form: EncodedForm) -> Result<Vec<Vec<Vec<f32>>>, DecoderError> {
        let whole = self.decoder.sees_behind();
        let steps = if whole { TextSteps::whole(texts) } else { TextSteps::of(texts, self.decoder.info()) };
        let mut rows: Vec<Tensor> = Vec::new();
        let mut failed = None;
        for piece in steps.pieces(texts) {
            match self.decoder.normed_rows(&piece) {
                Ok(of_piece) => rows.push(of_piece),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        self.decoder.free(&steps.all_blocks());
        if let Some(error) = failed {
            return Err(error);
        }
        // Of several pieces there is one text only.
        let of_all = || shaped(&Tensor::cat(&rows, 0)?, texts, &self.steps, form);
        of_all().map_err(|error| device::failure(&error))
    }
}

impl TextEncoder for DecoderEmbedder {
    fn info(&self) -> &EncoderInfo {
        &self.info
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        self.decoder.places()
    }

    fn encode(&mut self, texts: &[EncoderText<'_>]) -> Result<Vec<Vec<f32>>, DecoderError> {
        Ok(self.encode_as(texts, EncodedForm::Whole)?.into_iter().flatten().collect())
    }

    fn has_form(&self, _: EncodedForm) -> bool {
        true
    }

    fn encode_as(&mut self, texts: &[EncoderText<'_>], form: EncodedForm) -> Result<Vec<Vec<Vec<f32>>>, DecoderError> {
        let mut vectors = Vec::with_capacity(texts.len());
        for batch in TextSteps::batches(texts, self.info.max_tokens, self.decoder.info())? {
            vectors.extend(self.vectors(batch, form)?);
        }
        Ok(vectors)
    }
}
