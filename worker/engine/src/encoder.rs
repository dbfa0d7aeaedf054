//! The contract between the worker's shell and an encoder, which turns texts into vectors, or into a number for each of
//! its labels.

use crate::decoder::DecoderError;
use crate::label_shares::LabelShares;
use crate::places::PlaceUse;
use crate::sight::SightInfo;
use model_boss_images::PixelPlanes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A text as an encoder reads it, or a pair of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderText<'a> {
    /// The tokens, with the special ones.
    pub tokens: &'a [u32],
    /// The first token of the second text; the number of all tokens where there is one text.
    pub second_from: usize,
    /// The task whose adapters are used, among [`EncoderInfo::tasks`]; none are used without.
    pub task: Option<usize>,
    /// The first tokens, which the text's one vector leaves out: those of a prompt, where
    /// [`EncoderInfo::leaves_prompts_out`] says so.
    pub left_out: usize,
}

impl<'a> EncoderText<'a> {
    /// One text.
    pub fn one(tokens: &'a [u32]) -> Self {
        Self { tokens, second_from: tokens.len(), task: None, left_out: 0 }
    }
}

/// How a pair of texts becomes one list of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PairForm {
    /// As the tokenizer joins them.
    Joined,
    /// As a prompt for a model that writes text.
    Prompt(PairPrompt),
}

/// A prompt about a query and a document: this text, `query`, that text and the document, between two others. They are
/// tokenised apart, so that a document that is too long is cut and the rest is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairPrompt {
    /// In front of all.
    pub before: String,
    /// In front of the instruction, the query and the document.
    pub names: [String; 3],
    /// The instruction, where a request has none.
    pub instruction: String,
    /// Behind all.
    pub behind: String,
}

/// Facts about an encoder that requests are checked by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderInfo {
    /// Token ids are below this.
    pub vocab_size: usize,
    /// The longest text, in tokens with the special ones.
    pub max_tokens: usize,
    /// Numbers of a vector.
    pub width: usize,
    /// The names of the vector's numbers, of a model that classifies; else none.
    pub labels: Vec<String>,
    /// How these become shares.
    pub shares: LabelShares,
    /// The form of pairs.
    pub pairs: PairForm,
    /// Bytes of weights held.
    pub weight_bytes: u64,
    /// Bytes that a step is known to take on each device beside weights, keys and values.
    pub workspace_bytes: u64,
    /// The most tokens that keys and values are held of; none without a limit, zero for a model that keeps none.
    pub kv_tokens: Option<usize>,
    /// Texts that the model's folder has to put in front of inputs, by their names (`query`, `document`).
    pub prompts: BTreeMap<String, String>,
    /// The one that is used where a request names none.
    pub default_prompt: Option<String>,
    /// Whether the one vector of a text is made without the tokens of such a text in front of it.
    pub leaves_prompts_out: bool,
    /// The tasks that the model has adapters for.
    pub tasks: Vec<String>,
}

impl EncoderInfo {
    /// Refuses texts that the encoder cannot compute.
    pub fn check(&self, texts: &[EncoderText<'_>]) -> Result<(), DecoderError> {
        let is_wrong = |text: &EncoderText<'_>| {
            let unknown = text.tokens.iter().any(|token| *token as usize >= self.vocab_size);
            text.tokens.is_empty() || text.tokens.len() > self.max_tokens || unknown
        };
        if texts.iter().any(is_wrong) {
            return Err(DecoderError::Step("a text is empty, too long, or has an unknown token".to_owned()));
        }
        if texts.iter().any(|text| text.task.is_some_and(|task| task >= self.tasks.len())) {
            return Err(DecoderError::Step("a text is of a task that there are no adapters for".to_owned()));
        }
        Ok(())
    }
}

/// The form of what is wanted of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EncodedForm {
    /// One vector, as the model's folder describes it.
    #[default]
    Whole,
    /// The same without the last step, if that gives vectors the length 1.
    AnyLength,
    /// The rows of all tokens, as the layers leave them.
    EachToken,
}

/// An encoder in the middle of a pass, which can compute other texts before it goes on.
pub trait PausedEncoder {
    /// As [`TextEncoder::encode_as`].
    fn encode_now(&self, texts: &[EncoderText<'_>], form: EncodedForm) -> Result<Vec<Vec<Vec<f32>>>, DecoderError>;
}

/// The work that is done where a pass pauses.
pub type AtPause<'a> = &'a (dyn Fn(&dyn PausedEncoder) + Sync);

/// A model that turns texts into vectors, or into a number for each of its labels.
pub trait TextEncoder: Send {
    /// The facts.
    fn info(&self) -> &EncoderInfo;

    /// The use of the encoder's device.
    fn places(&self) -> Arc<[PlaceUse]>;

    /// The vectors of some texts, computed in one pass. A text is never empty, has at most
    /// [`EncoderInfo::max_tokens`] tokens, and its vector does not depend on the others.
    fn encode(&mut self, texts: &[EncoderText<'_>]) -> Result<Vec<Vec<f32>>, DecoderError>;

    /// The rows of some texts in this form: one of each, or one for each token.
    fn encode_as(&mut self, texts: &[EncoderText<'_>], form: EncodedForm) -> Result<Vec<Vec<Vec<f32>>>, DecoderError> {
        match form {
            EncodedForm::Whole => Ok(self.encode(texts)?.into_iter().map(|vector| vec![vector]).collect()),
            EncodedForm::AnyLength => Err(DecoderError::Step("this model has vectors of length 1 only".to_owned())),
            EncodedForm::EachToken => Err(DecoderError::Step("this model has no vectors of tokens".to_owned())),
        }
    }

    /// The same. The pass pauses some times in each layer, where it can, so that a short text need not wait for it.
    fn encode_pausing(
        &mut self,
        texts: &[EncoderText<'_>],
        form: EncodedForm,
        _at_pause: AtPause<'_>,
    ) -> Result<Vec<Vec<Vec<f32>>>, DecoderError> {
        self.encode_as(texts, form)
    }

    /// Whether the model gives vectors in this form.
    fn has_form(&self, form: EncodedForm) -> bool {
        form == EncodedForm::Whole
    }

    /// How the model reads images and compares them with texts; none of a model of texts alone.
    fn sight(&self) -> Option<&SightInfo> {
        None
    }

    /// The vectors of some images, computed in one pass. Each has the size that [`SightInfo`] gives it, and its vector
    /// does not depend on the others.
    fn encode_images(&mut self, _images: &[&PixelPlanes]) -> Result<Vec<Vec<f32>>, DecoderError> {
        Err(DecoderError::Step("this model reads no images".to_owned()))
    }
}
