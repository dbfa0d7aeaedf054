//! `POST /v1/embeddings`: vectors of texts, as OpenAI's API has them.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model_boss_engine::EncoderInfo;
use model_boss_protocol::{ApiError, ErrorCode};
use serde::{Deserialize, Serialize};

use super::body::reading;
use super::error::{ErrorAnswer, text_error};
use super::fields::RequestFields;
use crate::encoding::{EncodeError, TextTokens};
use crate::state::{Serving, WorkerState};
use crate::text::{AddSpecials, EncodeQuestion};

/// Texts of one request, as many as OpenAI's API takes.
pub(super) const MOST_TEXTS: usize = 2048;

/// A list of vectors.
#[derive(Serialize)]
pub(super) struct EmbeddingList {
    object: &'static str,
    data: Vec<OneEmbedding>,
    model: String,
    usage: EmbeddingUsage,
}

#[derive(Serialize)]
struct OneEmbedding {
    object: &'static str,
    index: usize,
    embedding: VectorForm,
}

/// Numbers, or the bytes of their f32 from the lowest on.
#[derive(Serialize)]
#[serde(untagged)]
enum VectorForm {
    Numbers(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// The forms of what is embedded.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a text, a list of texts, a list of tokens, or a list of such lists")]
enum EmbeddingInput {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
    /// llama-server's objects, among texts.
    Object(InputText),
    Objects(Vec<InputText>),
}

/// A text, alone or in an object of llama-server's.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a text, or an object with 'prompt_string' or 'content'")]
enum InputText {
    Plain(String),
    Prompt {
        prompt_string: String,
        #[serde(default)]
        multimodal_data: Vec<serde_json::Value>,
    },
    Parts {
        content: Vec<InputTextPart>,
    },
}

/// A part of a text.
#[derive(Deserialize)]
struct InputTextPart {
    r#type: String,
    text: Option<String>,
}

impl InputText {
    fn text(self) -> Result<String, ApiError> {
        let refused = || {
            let message =
                "'input' has images, and models of the category 'embedding' read texts only; ask one of 'vision'";
            ApiError::new(ErrorCode::UnsupportedByModel, message).with_param("input")
        };
        match self {
            Self::Plain(text) => Ok(text),
            Self::Prompt { prompt_string, multimodal_data } if multimodal_data.is_empty() => Ok(prompt_string),
            Self::Prompt { .. } => Err(refused()),
            Self::Parts { content } => content
                .into_iter()
                .map(|part| part.text.filter(|_| part.r#type == "text").ok_or_else(refused))
                .collect(),
        }
    }
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum EncodingFormat {
    Float,
    Base64,
}

/// The form of vectors that a request wants.
#[derive(Clone, Copy)]
pub(super) struct VectorWish {
    format: EncodingFormat,
    dimensions: Option<usize>,
}

impl VectorWish {
    pub(super) fn read(fields: &RequestFields<'_>, info: &EncoderInfo) -> Result<Self, ApiError> {
        let dimensions = fields.whole(&["dimensions"], 1..=info.width as i64)?.map(|number| number as usize);
        Ok(Self { format: fields.get("encoding_format")?.unwrap_or(EncodingFormat::Float), dimensions })
    }
}

impl EmbeddingList {
    pub(super) fn new(worker: &WorkerState, vectors: Vec<Vec<f32>>, wish: VectorWish, tokens: usize) -> Self {
        let one = |(index, vector)| {
            let vector = shortened(vector, wish.dimensions);
            let embedding = match wish.format {
                EncodingFormat::Float => VectorForm::Numbers(vector),
                EncodingFormat::Base64 => {
                    let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
                    VectorForm::Base64(STANDARD.encode(bytes))
                }
            };
            OneEmbedding { object: "embedding", index, embedding }
        };
        Self {
            object: "list",
            data: vectors.into_iter().enumerate().map(one).collect(),
            model: worker.spec.model.to_string(),
            usage: EmbeddingUsage { prompt_tokens: tokens, total_tokens: tokens },
        }
    }
}

/// A request as it was read.
struct EmbeddingDraft {
    input: DraftInput,
    wish: VectorWish,
    truncate: bool,
    /// The text in front of each.
    before: String,
    /// The task whose adapters are used.
    task: Option<usize>,
}

enum DraftInput {
    Texts(Vec<String>),
    Tokens(Vec<Vec<u32>>),
}

/// Answers with a vector for each input.
pub(super) async fn embed(
    State(worker): State<Arc<WorkerState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<EmbeddingList>, ErrorAnswer> {
    let draft = reading(&worker, body?, draft).await?;
    let serving = worker.serving()?;
    let info = serving.encoder()?;
    let (texts, left_out) = match draft.input {
        DraftInput::Texts(texts) => {
            let left_out = prompt_tokens(serving, info, (&draft.before, "input")).await?;
            (encoded(serving, info, (texts, "input"), draft.truncate).await?, left_out)
        }
        DraftInput::Tokens(lists) => (checked(info, (lists, "input"), draft.truncate)?, 0),
    };
    let tokens = texts.iter().map(Vec::len).sum();
    let of_task = |tokens| TextTokens { task: draft.task, left_out, ..TextTokens::from(tokens) };
    let vectors =
        serving.encode(texts.into_iter().map(of_task).collect()).await?.map_err(|error| step_error(&error))?;
    Ok(Json(EmbeddingList::new(&worker, vectors, draft.wish, tokens)))
}

pub(super) fn step_error(error: &EncodeError) -> ApiError {
    match error {
        EncodeError::OutOfMemory(_) => {
            ApiError::new(ErrorCode::NoCapacity, error.to_string()).retry_after(std::time::Duration::from_secs(1))
        }
        _ => ApiError::new(ErrorCode::Internal, error.to_string()),
    }
}

fn draft(worker: &WorkerState, body: &[u8]) -> Result<EmbeddingDraft, ErrorAnswer> {
    let fields = RequestFields::read(body, Some(&worker.defaults))?;
    let info = worker.serving()?.encoder()?;
    let TextPurpose { before, task } = TextPurpose::read(&fields, info)?;
    let input = match fields.require::<EmbeddingInput>("input")? {
        EmbeddingInput::Text(text) => DraftInput::Texts(vec![text]),
        EmbeddingInput::Texts(texts) => DraftInput::Texts(texts),
        EmbeddingInput::Object(object) => DraftInput::Texts(vec![object.text()?]),
        EmbeddingInput::Objects(objects) => {
            DraftInput::Texts(objects.into_iter().map(InputText::text).collect::<Result<_, _>>()?)
        }
        EmbeddingInput::Tokens(tokens) => DraftInput::Tokens(vec![tokens]),
        EmbeddingInput::TokenLists(lists) => DraftInput::Tokens(lists),
    };
    let (input, count) = match input {
        DraftInput::Texts(texts) => {
            let count = texts.len();
            (DraftInput::Texts(texts.into_iter().map(|text| [before, &text].concat()).collect()), count)
        }
        DraftInput::Tokens(lists) => {
            let count = lists.len();
            (DraftInput::Tokens(lists), count)
        }
    };
    if !(1..=MOST_TEXTS).contains(&count) {
        let message = format!("'input' has {count} texts; it may have 1 to {MOST_TEXTS}");
        return Err(ApiError::invalid("input", message).into());
    }
    Ok(EmbeddingDraft {
        input,
        wish: VectorWish::read(&fields, info)?,
        truncate: fields.get("truncate")?.unwrap_or(true),
        before: before.to_owned(),
        task,
    })
}

/// The use that a request has for the vectors of its texts.
pub(super) struct TextPurpose<'a> {
    /// The text that goes in front of each input.
    pub(super) before: &'a str,
    /// The task whose adapters are used.
    pub(super) task: Option<usize>,
}

impl<'a> TextPurpose<'a> {
    pub(super) fn read(fields: &RequestFields<'_>, info: &'a EncoderInfo) -> Result<Self, ApiError> {
        let named = fields.get::<String>("prompt_name")?;
        let task = task_of(info, fields.get("task")?, named.as_deref())?;
        // The text of a task is that of its name, where the model has one.
        let of_task = task.and_then(|task| info.tasks.get(task)).filter(|task| info.prompts.contains_key(*task));
        let prompt = match named.or_else(|| of_task.cloned()) {
            Some(name) => Some(info.prompts.get(&name).ok_or_else(|| {
                let known: Vec<&String> = info.prompts.keys().collect();
                ApiError::invalid("prompt_name", format!("'prompt_name' is '{name}'; this model has {known:?}"))
            })?),
            None => info.default_prompt.as_ref().and_then(|name| info.prompts.get(name)),
        };
        Ok(Self { before: prompt.map_or("", String::as_str), task })
    }
}

/// The task of a request: the one that it names, else the one that its prompt is for, else that of the model's own
/// prompt.
fn task_of(info: &EncoderInfo, task: Option<String>, prompt: Option<&str>) -> Result<Option<usize>, ApiError> {
    let find = |name: &str| info.tasks.iter().position(|task| task == name);
    let Some(name) = task else {
        return Ok(prompt.or(info.default_prompt.as_deref()).and_then(find));
    };
    find(&name).map(Some).ok_or_else(|| {
        let known = &info.tasks;
        ApiError::invalid("task", format!("'task' is '{name}'; this model has adapters for {known:?}"))
    })
}

/// The tokens in front of each text that its one vector leaves out: those of a prompt by itself, without a special
/// token behind it, as `sentence-transformers` counts them.
pub(super) async fn prompt_tokens(
    serving: &Serving,
    info: &EncoderInfo,
    (before, field): (&str, &'static str),
) -> Result<usize, ErrorAnswer> {
    if !info.leaves_prompts_out || before.is_empty() {
        return Ok(0);
    }
    let failed = |error| text_error(error, field, info.max_tokens);
    let question = EncodeQuestion::new(vec![before.to_owned(), String::new()], AddSpecials::Yes, None);
    let lists = serving.text.encode(question.map_err(failed)?).await.map_err(failed)?;
    let [prompt, around] = lists.as_slice() else { return Ok(0) };
    let ends = prompt.last().is_some_and(|last| around.contains(last));
    Ok(prompt.len().min(info.max_tokens) - usize::from(ends))
}

/// The end at which a text that is too long is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutFrom {
    /// Its first words are left out.
    Front,
    /// Its last ones are.
    Behind,
}

/// The tokens of texts, with those that the model wants around each. Longer ones are cut in front of the last of these.
pub(super) async fn encoded(
    serving: &Serving,
    info: &EncoderInfo,
    texts: (Vec<String>, &'static str),
    truncate: bool,
) -> Result<Vec<Vec<u32>>, ErrorAnswer> {
    encoded_from(serving, info, texts, truncate.then_some(CutFrom::Behind)).await
}

/// The same, and longer texts are cut at this end; without one they are refused.
pub(super) async fn encoded_from(
    serving: &Serving,
    info: &EncoderInfo,
    (texts, field): (Vec<String>, &'static str),
    from: Option<CutFrom>,
) -> Result<Vec<Vec<u32>>, ErrorAnswer> {
    let most = info.max_tokens;
    let encode = async |texts: Vec<String>, most: Option<usize>| {
        let failed = |error| text_error(error, field, info.max_tokens);
        let question = EncodeQuestion::new(texts, AddSpecials::Yes, most).map_err(failed)?;
        serving.text.encode(question).await.map_err(failed)
    };
    let mut lists = encode(texts, from.is_none().then_some(most)).await?;
    if let Some(from) = from
        && lists.iter().any(|tokens| tokens.len() > most)
    {
        let around = encode(vec![String::new()], None).await?.pop().unwrap_or_default();
        lists.iter_mut().filter(|tokens| tokens.len() > most).for_each(|tokens| cut(tokens, most, &around, from));
    }
    if lists.iter().any(Vec::is_empty) {
        return Err(ApiError::invalid(field, format!("'{field}' has a text without a token")).into());
    }
    Ok(lists)
}

/// Cuts a text that is too long. `around` are the tokens that an empty one has.
fn cut(tokens: &mut Vec<u32>, most: usize, around: &[u32], from: CutFrom) {
    let before = tokens.iter().zip(around).take_while(|(one, other)| one == other).count();
    if from == CutFrom::Front {
        let kept = tokens.len() - most.saturating_sub(before).min(tokens.len());
        tokens.drain(before.min(kept)..kept);
        tokens.truncate(most);
        return;
    }
    let behind = &around[before..];
    tokens.truncate(most.saturating_sub(behind.len()));
    tokens.extend(behind);
    tokens.truncate(most);
}

/// Tokens of the client's own.
pub(super) fn checked(
    info: &EncoderInfo,
    (mut lists, field): (Vec<Vec<u32>>, &'static str),
    truncate: bool,
) -> Result<Vec<Vec<u32>>, ErrorAnswer> {
    for tokens in &mut lists {
        if tokens.is_empty() {
            return Err(ApiError::invalid(field, format!("'{field}' has a list without a token")).into());
        }
        if let Some(unknown) = tokens.iter().find(|token| **token as usize >= info.vocab_size) {
            let message =
                format!("'{field}' has the token {unknown}, and the model has those from 0 to {}", info.vocab_size - 1);
            return Err(ApiError::invalid(field, message).into());
        }
        if tokens.len() > info.max_tokens && !truncate {
            let message =
                format!("'{field}' has a text of {} tokens; the model takes {}", tokens.len(), info.max_tokens);
            return Err(ApiError::new(ErrorCode::ContextLengthExceeded, message).with_param(field).into());
        }
        tokens.truncate(info.max_tokens);
    }
    Ok(lists)
}

/// The first numbers of a vector, of length 1 again.
pub(super) fn shortened(mut vector: Vec<f32>, dimensions: Option<usize>) -> Vec<f32> {
    let Some(dimensions) = dimensions.filter(|count| *count < vector.len()) else { return vector };
    vector.truncate(dimensions);
    let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|number| *number /= length);
    }
    vector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_1_a_long_text_is_cut_in_front_of_its_last_special_token() {
        let cut = |tokens: &[u32], around: &[u32]| {
            let mut tokens = tokens.to_vec();
            super::cut(&mut tokens, 4, around, CutFrom::Behind);
            tokens
        };
        assert_eq!(cut(&[1, 7, 8, 9, 6, 2], &[1, 2]), [1, 7, 8, 2]);
        assert_eq!(cut(&[1, 7, 8, 9, 6], &[1]), [1, 7, 8, 9]);
        assert_eq!(cut(&[7, 8, 9, 6, 5, 2], &[2]), [7, 8, 9, 2]);
        assert_eq!(cut(&[7, 8, 9, 6, 5], &[]), [7, 8, 9, 6]);
    }

    #[test]
    fn em_1_a_long_text_may_lose_its_first_words() {
        let cut = |tokens: &[u32], around: &[u32]| {
            let mut tokens = tokens.to_vec();
            super::cut(&mut tokens, 4, around, CutFrom::Front);
            tokens
        };
        assert_eq!(cut(&[1, 7, 8, 9, 6, 2], &[1, 2]), [1, 9, 6, 2]);
        assert_eq!(cut(&[7, 8, 9, 6, 5], &[]), [8, 9, 6, 5]);
        assert_eq!(cut(&[1, 3, 4, 5, 6, 7], &[1, 3, 4, 5, 9]), [1, 3, 4, 5]);
    }

    #[test]
    fn em_1_a_shorter_vector_has_the_length_one() {
        assert_eq!(shortened(vec![3.0, 4.0, 9.0], Some(2)), [0.6, 0.8]);
        assert_eq!(shortened(vec![3.0, 4.0], Some(2)), [3.0, 4.0]);
        assert_eq!(shortened(vec![0.0, 4.0], Some(1)), [0.0]);
    }
}
