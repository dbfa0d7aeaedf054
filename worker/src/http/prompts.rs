//! The field `prompt` of completions: texts, tokens and mixtures of them, as OpenAI's API and llama-server read it.

use std::collections::VecDeque;

use model_boss_engine::text::Specials;
use model_boss_protocol::{ApiError, ErrorCode};
use serde::Deserialize;
use serde_json::Value;

use super::error::{ErrorAnswer, text_error};
use super::fields::RequestFields;
use crate::state::Serving;
use crate::text::{AddSpecials, EncodeQuestion, TextFailure};

/// The field of the prompt.
const FIELD: &str = "prompt";

/// Most answers in one request, over all its prompts.
const MOST_SEQUENCES: usize = 1_024;

/// A piece of a prompt.
pub(super) enum PromptPiece {
    Text(String),
    Tokens(Vec<u32>),
}

/// The prompts of a request, whose texts wait for the tokenizer.
pub(super) struct AskedPrompts {
    prompts: Vec<Vec<PromptPiece>>,
    /// Whether the request has a list of prompts.
    pub(super) is_list: bool,
    /// The question for texts that begin a prompt, and for those behind other pieces.
    questions: [EncodeQuestion; 2],
}

/// A prompt as tokens, and its text as it came.
pub(super) struct TokenPrompt {
    pub(super) tokens: Vec<u32>,
    /// The text of a prompt that is one text.
    text: Option<String>,
}

impl TokenPrompt {
    /// The text that an answer repeats.
    pub(super) fn echo(&self, serving: &Serving) -> String {
        let spelled = || serving.text.vocabulary.text(&self.tokens, Specials::Hidden);
        self.text.clone().unwrap_or_else(spelled)
    }
}

impl AskedPrompts {
    /// The prompts of a request.
    pub(super) fn read(serving: &Serving, fields: &RequestFields<'_>) -> Result<Self, ErrorAnswer> {
        let (prompts, is_list) = prompts(fields.require(FIELD)?)?;
        Self::asking(serving, prompts, is_list)
    }

    /// One prompt of pieces that the server puts together.
    pub(super) fn of_pieces(serving: &Serving, pieces: Vec<PromptPiece>) -> Result<Self, ErrorAnswer> {
        Self::asking(serving, vec![pieces], false)
    }

    fn asking(serving: &Serving, prompts: Vec<Vec<PromptPiece>>, is_list: bool) -> Result<Self, ErrorAnswer> {
        let context = serving.info.context_length;
        let failed = |error| ErrorAnswer::from(text_error(error, FIELD, context));
        // Tokenising takes time and memory in proportion to the text; one that cannot fit is refused before.
        let tokens = |piece: &PromptPiece| match piece {
            PromptPiece::Text(text) => serving.text.vocabulary.at_least(text),
            PromptPiece::Tokens(tokens) => tokens.len(),
        };
        let longest = prompts.iter().map(|pieces| pieces.iter().map(tokens).sum()).max().unwrap_or(0);
        if longest > context {
            return Err(failed(TextFailure::TooLong { tokens: longest }));
        }
        let mut texts = [Vec::new(), Vec::new()];
        for (at, piece) in prompts.iter().flat_map(|pieces| pieces.iter().enumerate()) {
            if let PromptPiece::Text(text) = piece {
                texts[usize::from(at > 0)].push(text.clone());
            }
        }
        let [first, behind] = texts;
        let first = EncodeQuestion::new(first, AddSpecials::Yes, Some(context)).map_err(failed)?;
        let behind = EncodeQuestion::new(behind, AddSpecials::No, Some(context)).map_err(failed)?;
        Ok(Self { prompts, is_list, questions: [first, behind] })
    }

    /// Checks the number of answers that a request asks for, where each prompt gets so many.
    pub(super) fn fit(&self, choices: usize) -> Result<(), ApiError> {
        if self.prompts.len() * choices > MOST_SEQUENCES {
            let message = format!("'prompt' and 'n' ask for more than {MOST_SEQUENCES} answers");
            return Err(ApiError::invalid(FIELD, message));
        }
        Ok(())
    }

    /// The prompts as tokens.
    pub(super) async fn tokens(self, serving: &Serving) -> Result<Vec<TokenPrompt>, ErrorAnswer> {
        let has = |behind: bool| {
            let pieces = |pieces: &Vec<PromptPiece>| {
                let mut of_place = pieces.iter().enumerate().filter(|(at, _)| (*at > 0) == behind);
                of_place.any(|(_, piece)| matches!(piece, PromptPiece::Text(_)))
            };
            self.prompts.iter().any(pieces)
        };
        let (has_first, has_behind) = (has(false), has(true));
        let [first, behind] = self.questions;
        let encode = async |wanted: bool, question: EncodeQuestion| -> Result<VecDeque<Vec<u32>>, ErrorAnswer> {
            if !wanted {
                return Ok(VecDeque::new());
            }
            let lists = serving.text.encode(question).await;
            let lists = lists.map_err(|error| text_error(error, FIELD, serving.info.context_length))?;
            Ok(lists.into())
        };
        let mut encoded = [encode(has_first, first).await?, encode(has_behind, behind).await?];
        let mut whole = Vec::with_capacity(self.prompts.len());
        for mut pieces in self.prompts {
            let mut tokens = Vec::new();
            for (at, piece) in pieces.iter().enumerate() {
                match piece {
                    PromptPiece::Text(_) => {
                        tokens.extend(encoded[usize::from(at > 0)].pop_front().unwrap_or_default());
                    }
                    PromptPiece::Tokens(own) => tokens.extend(own),
                }
            }
            let text = match (pieces.len(), pieces.pop()) {
                (1, Some(PromptPiece::Text(text))) => Some(text),
                _ => None,
            };
            whole.push(TokenPrompt { tokens, text });
        }
        Ok(whole)
    }
}

/// The forms that a prompt may have.
const FORMS: &str = "expected a text, a list of texts, a list of token ids or a list of such lists";

fn malformed() -> ApiError {
    ApiError::invalid(FIELD, format!("'{FIELD}': {FORMS}"))
}

/// All prompts, and whether they came in a list.
fn prompts(value: Value) -> Result<(Vec<Vec<PromptPiece>>, bool), ApiError> {
    let Value::Array(entries) = value else { return Ok((vec![single(value)?], false)) };
    if entries.is_empty() {
        return Err(ApiError::invalid(FIELD, format!("'{FIELD}' is empty")));
    }
    // One token makes a list one prompt: of tokens, or of tokens and texts.
    let is_prompt =
        entries.iter().any(Value::is_number) && entries.iter().all(|entry| entry.is_number() || entry.is_string());
    if is_prompt {
        return Ok((vec![mixed(entries)?], false));
    }
    Ok((entries.into_iter().map(single).collect::<Result<_, _>>()?, true))
}

/// llama-server's form of a prompt beside which images may be.
#[derive(Deserialize)]
struct PromptObject {
    prompt_string: String,
    multimodal_data: Option<Value>,
}

/// One prompt.
fn single(value: Value) -> Result<Vec<PromptPiece>, ApiError> {
    match value {
        Value::String(text) => Ok(vec![PromptPiece::Text(text)]),
        Value::Array(entries) if !entries.is_empty() => mixed(entries),
        Value::Array(_) => Err(ApiError::invalid(FIELD, format!("'{FIELD}' is empty"))),
        Value::Object(_) => {
            let PromptObject { prompt_string, multimodal_data } = serde_json::from_value(value)
                .map_err(|error| ApiError::invalid(FIELD, format!("'{FIELD}': {error}")))?;
            if multimodal_data.is_some_and(|data| !data.is_null() && data != Value::Array(Vec::new())) {
                let message = "images are read in conversations only; send them as parts of 'messages' to \
                               /v1/chat/completions";
                let place = format!("{FIELD}.multimodal_data");
                return Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param(place));
            }
            Ok(vec![PromptPiece::Text(prompt_string)])
        }
        _ => Err(malformed()),
    }
}

/// A prompt of tokens and texts. Tokens side by side are one piece.
fn mixed(entries: Vec<Value>) -> Result<Vec<PromptPiece>, ApiError> {
    let mut pieces: Vec<PromptPiece> = Vec::new();
    for entry in entries {
        match entry {
            Value::String(text) => pieces.push(PromptPiece::Text(text)),
            entry => {
                let token = entry.as_u64().and_then(|token| u32::try_from(token).ok()).ok_or_else(malformed)?;
                match pieces.last_mut() {
                    Some(PromptPiece::Tokens(tokens)) => tokens.push(token),
                    _ => pieces.push(PromptPiece::Tokens(vec![token])),
                }
            }
        }
    }
    Ok(pieces)
}
