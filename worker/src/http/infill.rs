//! Gaps in texts: `POST /infill` as llama-server has it, and `suffix` of completions. The model fills a gap whose
//! vocabulary has tokens for its edges.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::HeaderMap;
use axum::response::Response;
use model_boss_engine::text::Vocabulary;
use model_boss_protocol::{ApiError, ErrorCode};
use serde_json::{Map, Value};

use crate::state::{Serving, WorkerState};

use super::body::reading;
use super::error::ErrorAnswer;
use super::fields::RequestFields;
use super::generate::answer;
use super::native::NativeDraft;
use super::prompts::{AskedPrompts, PromptPiece};

/// The names of the tokens in vocabularies: of Qwen, Granite, StarCoder, Code Llama, DeepSeek, CodeGemma, GLM and
/// others. Source: llama.cpp's `llama-vocab.cpp`.
const PREFIX: [&str; 8] = [
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<PRE>",
    "<｜fim▁begin｜>",
    "<|code_prefix|>",
    "<|prefix|>",
    "[PREFIX]",
];
const SUFFIX: [&str; 8] = [
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<SUF>",
    "<｜fim▁hole｜>",
    "<|code_suffix|>",
    "<|suffix|>",
    "[SUFFIX]",
];
const MIDDLE: [&str; 8] = [
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<MID>",
    "<｜fim▁end｜>",
    "<|code_middle|>",
    "<|middle|>",
    "[MIDDLE]",
];
const REPOSITORY: [&str; 5] = ["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FILE: [&str; 1] = ["<|file_sep|>"];

/// A text with a gap.
pub(super) struct Gap {
    /// The text before the gap.
    pub(super) prefix: String,
    /// The text behind it.
    pub(super) suffix: String,
    /// The beginning of the text in it.
    pub(super) begun: String,
    /// Names and texts of other files.
    pub(super) files: Vec<(String, String)>,
}

impl Gap {
    /// The prompt for the text in the gap. `field` is the field that asks for it.
    pub(super) fn prompt(self, serving: &Serving, field: &str) -> Result<AskedPrompts, ErrorAnswer> {
        let vocabulary = &serving.text.vocabulary;
        let Some(edges) = GapTokens::of(vocabulary) else {
            let message = format!(
                "the model's vocabulary has no tokens around a gap, which '{field}' asks for; ask a model for code \
                 completion, such as Qwen2.5-Coder"
            );
            return Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param(field).into());
        };
        let special = vocabulary.special();
        let mut begin: Vec<u32> = special.bos.filter(|_| special.add_bos == Some(true)).into_iter().collect();
        let mut pieces = Vec::new();
        if let (Some(repository), Some(file), false) = (edges.repository, edges.file, self.files.is_empty()) {
            begin.push(repository);
            pieces.push(PromptPiece::Tokens(std::mem::take(&mut begin)));
            pieces.push(PromptPiece::Text("myproject\n".to_owned()));
            for (name, text) in &self.files {
                pieces.push(PromptPiece::Tokens(vec![file]));
                pieces.push(PromptPiece::Text(format!("{name}\n{text}")));
            }
            begin = vec![file];
            pieces.push(PromptPiece::Tokens(std::mem::take(&mut begin)));
            pieces.push(PromptPiece::Text("filename\n".to_owned()));
        } else if !self.files.is_empty() {
            // Without tokens between files, their texts come before the prefix, as in llama-server.
            begin.push(edges.prefix);
            pieces.push(PromptPiece::Tokens(std::mem::take(&mut begin)));
            for (name, text) in &self.files {
                pieces.push(PromptPiece::Text(format!("--- snippet ---\n{name}\n{text}\n")));
            }
            pieces.push(PromptPiece::Text(self.prefix + &self.begun));
            pieces.push(PromptPiece::Tokens(vec![edges.suffix]));
            pieces.push(PromptPiece::Text(self.suffix));
            pieces.push(PromptPiece::Tokens(vec![edges.middle]));
            return AskedPrompts::of_pieces(serving, pieces);
        }
        begin.push(edges.prefix);
        pieces.push(PromptPiece::Tokens(begin));
        pieces.push(PromptPiece::Text(self.prefix + &self.begun));
        pieces.push(PromptPiece::Tokens(vec![edges.suffix]));
        pieces.push(PromptPiece::Text(self.suffix));
        pieces.push(PromptPiece::Tokens(vec![edges.middle]));
        AskedPrompts::of_pieces(serving, pieces)
    }
}

/// The tokens around a gap.
struct GapTokens {
    prefix: u32,
    suffix: u32,
    middle: u32,
    repository: Option<u32>,
    file: Option<u32>,
}

impl GapTokens {
    fn of(vocabulary: &Vocabulary) -> Option<Self> {
        let named = |names: &[&str]| {
            let is = |token: &u32| {
                let text = std::str::from_utf8(vocabulary.bytes(*token)).unwrap_or_default();
                names.contains(&text.trim_start())
            };
            (0..u32::try_from(vocabulary.len()).unwrap_or(u32::MAX)).find(is)
        };
        Some(Self {
            prefix: named(&PREFIX)?,
            suffix: named(&SUFFIX)?,
            middle: named(&MIDDLE)?,
            repository: named(&REPOSITORY),
            file: named(&FILE),
        })
    }
}

/// Fills a gap.
pub(super) async fn complete(
    State(worker): State<Arc<WorkerState>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ErrorAnswer> {
    let draft = reading(&worker, body?, draft).await?;
    let plan = draft.plan(&worker).await?.with_headers(&headers)?;
    answer(&worker, worker.serving()?, plan).await
}

fn draft(worker: &WorkerState, body: &[u8]) -> Result<NativeDraft, ErrorAnswer> {
    let fields = RequestFields::read(body, Some(&worker.defaults))?;
    let gap = Gap {
        prefix: fields.require("input_prefix")?,
        suffix: fields.require("input_suffix")?,
        begun: fields.get("prompt")?.unwrap_or_default(),
        files: files(&fields)?,
    };
    let prompts = gap.prompt(worker.serving()?, "input_prefix")?;
    NativeDraft::read(worker, &fields, prompts)
}

/// The files of `input_extra`.
fn files(fields: &RequestFields<'_>) -> Result<Vec<(String, String)>, ApiError> {
    let given: Vec<Map<String, Value>> = fields.get("input_extra")?.unwrap_or_default();
    let file = |(at, mut file): (usize, Map<String, Value>)| {
        let place = |name: &str| format!("input_extra[{at}].{name}");
        let wrong = |name: &str| ApiError::invalid(place(name), format!("'{}' must be a text", place(name)));
        let text = match file.remove("text") {
            Some(Value::String(text)) => text,
            _ => return Err(wrong("text")),
        };
        match file.remove("filename") {
            Some(Value::String(name)) => Ok((name, text)),
            None => Ok(("tmp".to_owned(), text)),
            Some(_) => Err(wrong("filename")),
        }
    };
    given.into_iter().enumerate().map(file).collect()
}
