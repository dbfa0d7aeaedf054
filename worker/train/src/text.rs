//! The tokenizer of `guide`, trained on the corpus, and its chat template.

use std::path::Path;

use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

use crate::corpus::{Family, all_wordings};

/// The token at the beginning of a question.
pub const USER: &str = "<|user|>";
/// The token at the beginning of an answer.
pub const ASSISTANT: &str = "<|assistant|>";
/// The token at the end of both; generation stops here.
pub const END: &str = "<|end|>";
const PADDING: &str = "<|pad|>";

/// The chat template. Questions are reduced to lower case without question marks, which spares a model this small from
/// learning every word twice. Only the last exchange is rendered, which keeps any conversation within the trained
/// length. System messages are not rendered, because `guide` has one subject only.
pub const CHAT_TEMPLATE: &str = concat!(
    "{%- for message in (messages | rejectattr('role', 'equalto', 'system') | list)[-3:] -%}",
    "{%- if message.content is string -%}{%- set text = message.content -%}",
    "{%- else -%}{%- set text = message.content | selectattr('text', 'defined') | map(attribute='text') | join(' ') -%}",
    "{%- endif -%}",
    "{%- if message.role == 'user' -%}",
    "{{- '<|user|> ' + (text | lower | replace('?', '') | trim) + '<|end|>' -}}",
    "{%- elif message.role == 'assistant' -%}{{- '<|assistant|>' + (text | trim) + '<|end|>' -}}{%- endif -%}",
    "{%- endfor -%}",
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}",
);

/// The reason why text could not become tokens.
#[derive(Debug, thiserror::Error)]
pub enum GuideTextError {
    /// The tokenizer failed.
    #[error("the tokenizer failed: {0}")]
    Tokenizer(#[from] tokenizers::Error),
    /// The vocabulary lacks a required token.
    #[error("the tokenizer has no token {0}")]
    NoToken(&'static str),
}

/// A tokenizer with the ids of its special tokens.
pub struct GuideText {
    tokenizer: Tokenizer,
    /// Id of [`USER`].
    pub user: u32,
    /// Id of [`ASSISTANT`].
    pub assistant: u32,
    /// Id of [`END`].
    pub end: u32,
    /// Id of the padding of rows; never a target.
    pub padding: u32,
}

impl GuideText {
    /// Trains a byte-level BPE of at most `vocab_size` tokens on all questions and answers. The same corpus gives the
    /// same tokens.
    pub fn train(families: &[Family], vocab_size: usize) -> Result<Self, GuideTextError> {
        let mut tokenizer = Tokenizer::new(BPE::default());
        tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
        tokenizer.with_decoder(Some(ByteLevel::default()));
        let marks = [PADDING, USER, ASSISTANT, END].map(|mark| AddedToken::from(mark, true));
        let mut trainer: TrainerWrapper = BpeTrainer::builder()
            .show_progress(false)
            .vocab_size(vocab_size)
            .min_frequency(2)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .special_tokens(marks.to_vec())
            .build()
            .into();
        let questions = families.iter().flat_map(|f| &f.questions).flat_map(|q| all_wordings(q));
        let questions = questions.map(|question| format!(" {}", plain_question(&question)));
        // Training uses an answer once for each of its questions.
        let answers = families.iter().flat_map(|f| std::iter::repeat_n(f.answer.clone(), f.questions.len()));
        let texts: Vec<String> = questions.chain(answers).collect();
        tokenizer.train(&mut trainer, texts.into_iter())?;
        Self::new(tokenizer)
    }

    /// Reads the tokenizer of a `tokenizer.json`.
    pub fn open(path: &Path) -> Result<Self, GuideTextError> {
        Self::new(Tokenizer::from_file(path)?)
    }

    fn new(tokenizer: Tokenizer) -> Result<Self, GuideTextError> {
        let id = |mark| tokenizer.token_to_id(mark).ok_or(GuideTextError::NoToken(mark));
        let (user, assistant, end, padding) = (id(USER)?, id(ASSISTANT)?, id(END)?, id(PADDING)?);
        Ok(Self { tokenizer, user, assistant, end, padding })
    }

    /// Writes `tokenizer.json`.
    pub fn save(&self, path: &Path) -> Result<(), GuideTextError> {
        Ok(self.tokenizer.save(path, true)?)
    }

    /// The number of tokens in the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// The tokens of a question with its special tokens, up to the beginning of the answer, as [`CHAT_TEMPLATE`]
    /// renders them.
    pub fn question(&self, question: &str) -> Result<Vec<u32>, GuideTextError> {
        let mut tokens = vec![self.user];
        tokens.extend(self.encode(&format!(" {}", plain_question(question)))?);
        tokens.extend([self.end, self.assistant]);
        Ok(tokens)
    }

    /// The tokens of an answer with its end.
    pub fn answer(&self, answer: &str) -> Result<Vec<u32>, GuideTextError> {
        let mut tokens = self.encode(answer)?;
        tokens.push(self.end);
        Ok(tokens)
    }

    /// The text of tokens, without special tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, GuideTextError> {
        Ok(self.tokenizer.decode(tokens, true)?)
    }

    /// The tokens of a text, without special tokens.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, GuideTextError> {
        Ok(self.tokenizer.encode(text, false)?.get_ids().to_vec())
    }
}

/// A question as the chat template renders it.
pub fn plain_question(question: &str) -> String {
    question.to_lowercase().replace('?', "").trim().to_owned()
}
