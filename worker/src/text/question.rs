//! Questions for the text side as bytes, and why one got no answer.

use model_boss_engine::constraint::Grammar;
use model_boss_engine::text::Conversation;

use super::frame::frame;
use super::message::{AddSpecials, ImageTexts, TextQuestion};

/// A question whose renderer is ended from outside so often is given up.
pub(super) const TRIES: usize = 3;

/// The tokens of a conversation.
#[derive(Debug)]
pub(crate) struct ChatTokens {
    pub(crate) tokens: Vec<u32>,
    /// Whether the prompt was made without a template. Then only the first word of a next turn ends the answer.
    pub(crate) transcript: bool,
}

/// The reason why a request did not become a prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TextFailure {
    /// The request is at fault.
    #[error("{0}")]
    Refused(String),
    /// The prompt is longer than was asked for.
    #[error("the prompt has {tokens} tokens")]
    TooLong { tokens: usize },
    /// A limit was reached.
    #[error("{0}")]
    Limit(String),
    /// No process could be started.
    #[error("no process can be started for the chat template and the tokenizer: {0}")]
    NoRoom(String),
    /// Another program ended each process that was tried.
    #[error("the process that works on the chat template and the tokenizer was ended from outside {TRIES} times")]
    Ended,
}

/// A question as bytes. Making them takes time in proportion to the request.
#[derive(Debug)]
pub(crate) struct ChatQuestion(pub(super) Vec<u8>);

/// A question for the text of a prompt.
#[derive(Debug)]
pub(crate) struct RenderQuestion(pub(super) Vec<u8>);

/// A question for the tokens of texts.
#[derive(Debug)]
pub(crate) struct EncodeQuestion(pub(super) Vec<u8>);

/// A question for the tokens of pairs of texts.
#[derive(Debug)]
pub(crate) struct PairQuestion(pub(super) Vec<u8>);

/// A question whether a grammar can be used.
#[derive(Debug)]
pub(crate) struct GrammarQuestion(pub(super) Vec<u8>);

impl GrammarQuestion {
    pub(crate) fn new(grammar: Grammar) -> Result<Self, TextFailure> {
        framed(&TextQuestion::Check { grammar }).map(Self)
    }
}

impl ChatQuestion {
    /// A question for the tokens of a conversation, at most `most_tokens`.
    /// Texts take the place of the marks of images.
    pub(crate) fn new(
        conversation: Conversation,
        most_tokens: usize,
        images: Option<ImageTexts>,
    ) -> Result<Self, TextFailure> {
        framed(&TextQuestion::Chat { conversation, most_tokens, images }).map(Self)
    }
}

impl RenderQuestion {
    pub(crate) fn new(conversation: Conversation) -> Result<Self, TextFailure> {
        framed(&TextQuestion::Render { conversation }).map(Self)
    }
}

impl EncodeQuestion {
    /// Each text by itself, with at most `most_tokens` each.
    pub(crate) fn new(
        texts: Vec<String>,
        specials: AddSpecials,
        most_tokens: Option<usize>,
    ) -> Result<Self, TextFailure> {
        framed(&TextQuestion::Encode { texts, specials, most_tokens }).map(Self)
    }
}

impl PairQuestion {
    /// Each pair by itself, cut to at most `most_tokens`.
    pub(crate) fn new(pairs: Vec<[String; 2]>, most_tokens: usize) -> Result<Self, TextFailure> {
        framed(&TextQuestion::EncodePairs { pairs, most_tokens }).map(Self)
    }
}

fn framed(question: &TextQuestion) -> Result<Vec<u8>, TextFailure> {
    frame(question, &[]).map_err(|error| TextFailure::Refused(format!("the request cannot be passed on: {error}")))
}
