//! `POST /embed`, `/embed_all` and `/predict`, as text-embeddings-inference has them: lists without anything around
//! them.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use model_boss_engine::{EncodedForm, EncoderInfo, LabelShares, PairForm};
use model_boss_protocol::{ApiError, ErrorCode};
use serde::{Deserialize, Serialize};

use super::body::reading;
use super::embeddings::{
    CutFrom, MOST_TEXTS, TextPurpose, checked, encoded_from, prompt_tokens, shortened, step_error,
};
use super::error::ErrorAnswer;
use super::fields::RequestFields;
use super::pairs::{PairReading, numbers_of, shares, tokens_of};
use crate::encoding::{EncodeItem, EncodedRows, TextTokens};
use crate::state::{Serving, WorkerState};

/// The texts of a request.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a text, a list of tokens, or a list of texts and lists of tokens")]
enum TeiInputs {
    Text(String),
    Tokens(Vec<u32>),
    More(Vec<TeiInput>),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a text or a list of tokens")]
enum TeiInput {
    Text(String),
    Tokens(Vec<u32>),
}

/// The texts and pairs of a request: a list of texts is one of them.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a text, a pair of texts, or a list of lists of one or two texts")]
enum JudgedInputs {
    Text(String),
    One(Vec<String>),
    More(Vec<Vec<String>>),
}

/// The share of a label, or its number.
#[derive(Serialize)]
pub(super) struct Prediction {
    score: f32,
    label: String,
}

/// Predictions for one text, or for each of a list.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Predictions {
    One(Vec<Prediction>),
    More(Vec<Vec<Prediction>>),
}

struct EmbedDraft {
    inputs: Vec<TeiInput>,
    /// In front of each text.
    before: String,
    /// The task whose adapters are used.
    task: Option<usize>,
    truncate: bool,
    from: CutFrom,
    normalise: bool,
    dimensions: Option<usize>,
}

struct PredictDraft {
    inputs: Vec<(String, Option<String>)>,
    is_one: bool,
    truncate: bool,
    from: CutFrom,
    raw: bool,
    /// In front of each text, and of the first of a pair.
    before: String,
}

/// Answers with a vector for each text.
pub(super) async fn embed(
    State(worker): State<Arc<WorkerState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Vec<Vec<f32>>>, ErrorAnswer> {
    let mut draft = reading(&worker, body?, embed_draft).await?;
    let (normalise, dimensions) = (draft.normalise, draft.dimensions.take());
    let form = if normalise { EncodedForm::Whole } else { EncodedForm::AnyLength };
    let rows = rows_of(worker.serving()?, draft, form).await?;
    let one = |rows: EncodedRows| {
        let vector = rows.into_iter().next().unwrap_or_default();
        match (normalise, dimensions) {
            (true, dimensions) => unit(shortened(vector, dimensions)),
            (false, dimensions) => vector.into_iter().take(dimensions.unwrap_or(usize::MAX)).collect(),
        }
    };
    Ok(Json(rows.into_iter().map(one).collect()))
}

/// Answers with a vector for each token of each text, as the layers leave them.
pub(super) async fn embed_all(
    State(worker): State<Arc<WorkerState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Vec<EncodedRows>>, ErrorAnswer> {
    let draft = reading(&worker, body?, embed_draft).await?;
    Ok(Json(rows_of(worker.serving()?, draft, EncodedForm::EachToken).await?))
}

/// Answers with the labels of each text or pair, the likeliest first.
pub(super) async fn predict(
    State(worker): State<Arc<WorkerState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Predictions>, ErrorAnswer> {
    let PredictDraft { inputs, is_one, truncate, from, raw, before } = reading(&worker, body?, predict_draft).await?;
    let serving = worker.serving()?;
    let info = serving.encoder()?;
    let texts = judged(serving, info, (inputs, before, truncate, from)).await?;
    let predictions = |numbers: Vec<f32>| {
        let how = if raw { LabelShares::Unchanged } else { info.shares.between_0_and_1(numbers.len()) };
        let scores = shares(&numbers, how);
        let named = info.labels.iter().cloned().zip(scores);
        let mut all: Vec<Prediction> = named.map(|(label, score)| Prediction { score, label }).collect();
        all.sort_by(|one, other| other.score.total_cmp(&one.score));
        all
    };
    let mut all: Vec<Vec<Prediction>> = numbers_of(serving, texts).await?.into_iter().map(predictions).collect();
    Ok(Json(match is_one {
        true => Predictions::One(all.pop().unwrap_or_default()),
        false => Predictions::More(all),
    }))
}

/// The tokens of texts and pairs, in their order.
async fn judged(
    serving: &Serving,
    info: &EncoderInfo,
    (inputs, before, truncate, from): (Vec<(String, Option<String>)>, String, bool, CutFrom),
) -> Result<Vec<TextTokens>, ErrorAnswer> {
    let is_pair: Vec<bool> = inputs.iter().map(|(_, pair)| pair.is_some()).collect();
    let (mut single, mut pairs) = (Vec::new(), Vec::new());
    for (text, pair) in inputs {
        match pair {
            Some(pair) => pairs.push([text, pair]),
            None => single.push([before.as_str(), &text].concat()),
        }
    }
    if !single.is_empty() && info.pairs != PairForm::Joined {
        let message = "this model judges pairs of texts: each of 'inputs' needs two";
        return Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param("inputs").into());
    }
    if !pairs.is_empty() && truncate && from == CutFrom::Front {
        let message = "pairs of texts are cut at their ends only: 'truncation_direction' has to be 'Right'";
        return Err(ApiError::invalid("truncation_direction", message).into());
    }
    let single = match single.is_empty() {
        true => Vec::new(),
        false => encoded_from(serving, info, (single, "inputs"), truncate.then_some(from)).await?,
    };
    let reading = PairReading { before, instruction: None, truncate, field: "inputs" };
    let pairs = if pairs.is_empty() { Vec::new() } else { tokens_of(serving, pairs, &reading).await? };
    let (mut single, mut pairs) = (single.into_iter().map(TextTokens::from), pairs.into_iter());
    Ok(is_pair.into_iter().filter_map(|is_pair| if is_pair { pairs.next() } else { single.next() }).collect())
}

/// The rows of each text in the form that is wanted.
async fn rows_of(serving: &Serving, draft: EmbedDraft, form: EncodedForm) -> Result<Vec<EncodedRows>, ErrorAnswer> {
    let EmbedDraft { inputs, before, task, truncate, from, .. } = draft;
    let info = serving.encoder()?;
    let is_text: Vec<bool> = inputs.iter().map(|input| matches!(input, TeiInput::Text(_))).collect();
    let left_out = prompt_tokens(serving, info, (&before, "inputs")).await?;
    if left_out > 0 && truncate && from == CutFrom::Front {
        let message = "this model's vectors leave prompts out, so its texts are cut at their ends only";
        return Err(ApiError::invalid("truncation_direction", message).into());
    }
    let (mut texts, mut lists) = (Vec::new(), Vec::new());
    for input in inputs {
        match input {
            TeiInput::Text(text) => texts.push([before.as_str(), &text].concat()),
            TeiInput::Tokens(tokens) => lists.push(tokens),
        }
    }
    let texts = match texts.is_empty() {
        true => Vec::new(),
        false => encoded_from(serving, info, (texts, "inputs"), truncate.then_some(from)).await?,
    };
    let lists = checked(info, (lists, "inputs"), truncate)?;
    let (mut texts, mut lists) = (texts.into_iter(), lists.into_iter());
    let tokens = is_text.into_iter().filter_map(|is_text| {
        let (tokens, left_out) = if is_text { (texts.next()?, left_out) } else { (lists.next()?, 0) };
        Some(EncodeItem::Text(TextTokens { task, left_out, ..TextTokens::from(tokens) }))
    });
    let items = tokens.collect();
    Ok(serving.encode_items(items, form).await?.map_err(|error| step_error(&error))?)
}

fn embed_draft(worker: &WorkerState, body: &[u8]) -> Result<EmbedDraft, ErrorAnswer> {
    let fields = RequestFields::read(body, Some(&worker.defaults))?;
    let info = worker.serving()?.encoder()?;
    let inputs = match fields.require::<TeiInputs>("inputs")? {
        TeiInputs::Text(text) => vec![TeiInput::Text(text)],
        TeiInputs::Tokens(tokens) if !tokens.is_empty() => vec![TeiInput::Tokens(tokens)],
        TeiInputs::Tokens(_) => Vec::new(),
        TeiInputs::More(inputs) => inputs,
    };
    counted(inputs.len())?;
    let dimensions = fields.whole(&["dimensions"], 1..=info.width as i64)?;
    let purpose = TextPurpose::read(&fields, info)?;
    Ok(EmbedDraft {
        inputs,
        before: purpose.before.to_owned(),
        task: purpose.task,
        truncate: fields.get("truncate")?.unwrap_or(false),
        from: cut_from(&fields)?,
        normalise: fields.get("normalize")?.unwrap_or(true),
        dimensions: dimensions.map(|number| number as usize),
    })
}

fn predict_draft(worker: &WorkerState, body: &[u8]) -> Result<PredictDraft, ErrorAnswer> {
    let fields = RequestFields::read(body, Some(&worker.defaults))?;
    let (inputs, is_one) = match fields.require::<JudgedInputs>("inputs")? {
        JudgedInputs::Text(text) => (vec![vec![text]], true),
        JudgedInputs::One(texts) => (vec![texts], true),
        JudgedInputs::More(inputs) => (inputs, false),
    };
    counted(inputs.len())?;
    let input = |(at, texts): (usize, Vec<String>)| {
        let count = texts.len();
        let mut texts = texts.into_iter();
        match (texts.next(), texts.next(), count) {
            (Some(text), pair, 1 | 2) => Ok((text, pair)),
            _ => {
                let place = if is_one { "inputs".to_owned() } else { format!("inputs[{at}]") };
                let message = format!(
                    "'{place}' has {count} texts; it may have one or two. A list of texts is [[\"…\"], [\"…\"]]"
                );
                Err(ApiError::invalid(place, message))
            }
        }
    };
    Ok(PredictDraft {
        inputs: inputs.into_iter().enumerate().map(input).collect::<Result<_, ApiError>>()?,
        is_one,
        truncate: fields.get("truncate")?.unwrap_or(false),
        from: cut_from(&fields)?,
        raw: fields.get("raw_scores")?.unwrap_or(false),
        before: TextPurpose::read(&fields, worker.serving()?.encoder()?)?.before.to_owned(),
    })
}

fn counted(count: usize) -> Result<(), ApiError> {
    if (1..=MOST_TEXTS).contains(&count) {
        return Ok(());
    }
    Err(ApiError::invalid("inputs", format!("'inputs' has {count} texts; it may have 1 to {MOST_TEXTS}")))
}

fn cut_from(fields: &RequestFields<'_>) -> Result<CutFrom, ApiError> {
    match fields.get::<String>("truncation_direction")?.as_deref() {
        None | Some("Right" | "right") => Ok(CutFrom::Behind),
        Some("Left" | "left") => Ok(CutFrom::Front),
        Some(other) => {
            let message = format!("'truncation_direction' is '{other}'; it may be 'Left' or 'Right'");
            Err(ApiError::invalid("truncation_direction", message))
        }
    }
}

/// A vector of length 1; one of zeros stays.
fn unit(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|number| *number /= length);
    }
    vector
}
