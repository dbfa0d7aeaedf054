//! `POST /v1/score` and `/v1/classify`: the relevance of pairs and the shares of labels, as vLLM's API has them.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use model_boss_engine::PairForm;
use model_boss_protocol::{ApiError, ErrorCode};
use serde::{Deserialize, Serialize};

use super::body::reading;
use super::embeddings::{TextPurpose, encoded};
use super::error::ErrorAnswer;
use super::fields::RequestFields;
use super::pairs::{JudgedUsage, MOST_PAIRS, PairReading, scores_of, shares_of, tokens_of};
use crate::encoding::TextTokens;
use crate::state::WorkerState;

/// An answer with an entry for each pair or text.
#[derive(Serialize)]
pub(super) struct JudgedList<T> {
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<T>,
    usage: JudgedUsage,
}

impl<T> JudgedList<T> {
    pub(super) fn new(worker: &WorkerState, data: Vec<T>, usage: JudgedUsage) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { object: "list", created, model: worker.spec.model.to_string(), data, usage }
    }
}

#[derive(Serialize)]
pub(super) struct PairScore {
    index: usize,
    object: &'static str,
    score: f32,
}

#[derive(Serialize)]
pub(super) struct TextClass {
    index: usize,
    /// The label of the greatest share.
    label: String,
    probs: Vec<f32>,
    num_classes: usize,
}

impl TextClass {
    pub(super) fn of(index: usize, probs: Vec<f32>, labels: &[String]) -> Self {
        let best = (0..probs.len()).max_by(|one, other| probs[*one].total_cmp(&probs[*other]).then(other.cmp(one)));
        let label = best.and_then(|best| labels.get(best)).cloned().unwrap_or_default();
        Self { index, label, num_classes: probs.len(), probs }
    }
}

/// A text, or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a text or a list of texts")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

/// A text to classify, or a pair.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a text, or an object with 'text' and 'text_pair'")]
enum ClassInput {
    Text(String),
    Pair { text: String, text_pair: Option<String> },
}

/// One of these, or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a text, an object with 'text' and 'text_pair', or a list of such")]
enum ClassInputs {
    One(ClassInput),
    More(Vec<ClassInput>),
}

struct ScoreDraft {
    pairs: Vec<[String; 2]>,
    reading: PairReading,
}

struct ClassDraft {
    inputs: Vec<(String, Option<String>)>,
    reading: PairReading,
}

/// Answers with a score for each pair.
pub(super) async fn score(
    State(worker): State<Arc<WorkerState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<JudgedList<PairScore>>, ErrorAnswer> {
    let ScoreDraft { pairs, reading } = reading(&worker, body?, score_draft).await?;
    let serving = worker.serving()?;
    let texts = tokens_of(serving, pairs, &reading).await?;
    let usage = JudgedUsage::of(&texts);
    let scores = scores_of(serving, texts, serving.encoder()?.shares).await?.into_iter().enumerate();
    let data = scores.map(|(index, score)| PairScore { index, object: "score", score }).collect();
    Ok(Json(JudgedList::new(&worker, data, usage)))
}

fn score_draft(worker: &WorkerState, body: &[u8]) -> Result<ScoreDraft, ErrorAnswer> {
    let fields = RequestFields::read(body, Some(&worker.defaults))?;
    let texts = |names: [&'static str; 3]| -> Result<(bool, Vec<String>), ApiError> {
        let found = fields.first_of::<OneOrMore>(&names)?;
        let (_, texts) = found.ok_or_else(|| ApiError::invalid(names[0], format!("'{}' is missing", names[0])))?;
        Ok(match texts {
            OneOrMore::One(text) => (true, vec![text]),
            OneOrMore::More(texts) => (false, texts),
        })
    };
    let (is_one, first) = texts(["text_1", "queries", "data_1"])?;
    let (_, second) = texts(["text_2", "documents", "data_2"])?;
    let pairs: Vec<[String; 2]> = match (first.as_slice(), first.len() == second.len()) {
        ([one], false) if is_one => second.into_iter().map(|other| [one.clone(), other]).collect(),
        (_, true) => first.into_iter().zip(second).map(|(one, other)| [one, other]).collect(),
        _ => {
            let message = format!(
                "'text_1' has {} texts and 'text_2' has {}; give as many of both, or one text in 'text_1'",
                first.len(),
                second.len()
            );
            return Err(ApiError::invalid("text_2", message).into());
        }
    };
    if !(1..=MOST_PAIRS).contains(&pairs.len()) {
        let message = format!("'text_2' has {} texts; it may have 1 to {MOST_PAIRS}", pairs.len());
        return Err(ApiError::invalid("text_2", message).into());
    }
    Ok(ScoreDraft { pairs, reading: reading_of(worker, &fields, "text_2")? })
}

fn reading_of(
    worker: &WorkerState,
    fields: &RequestFields<'_>,
    field: &'static str,
) -> Result<PairReading, ErrorAnswer> {
    Ok(PairReading {
        before: TextPurpose::read(fields, worker.serving()?.encoder()?)?.before.to_owned(),
        instruction: fields.first_of(&["instruction", "instruct"])?.map(|(_, text)| text),
        truncate: fields.get("truncate")?.unwrap_or(true),
        field,
    })
}

/// Answers with the shares of the labels for each text or pair.
pub(super) async fn classify(
    State(worker): State<Arc<WorkerState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<JudgedList<TextClass>>, ErrorAnswer> {
    let ClassDraft { inputs, reading } = reading(&worker, body?, class_draft).await?;
    let serving = worker.serving()?;
    let info = serving.encoder()?;
    let is_pair: Vec<bool> = inputs.iter().map(|(_, pair)| pair.is_some()).collect();
    let (mut single, mut pairs) = (Vec::new(), Vec::new());
    for (text, pair) in inputs {
        match pair {
            Some(pair) => pairs.push([text, pair]),
            None => single.push([reading.before.as_str(), &text].concat()),
        }
    }
    if !single.is_empty() && info.pairs != PairForm::Joined {
        let message = "this model judges pairs of texts: each of 'input' needs 'text' and 'text_pair'";
        return Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param("input").into());
    }
    let single = match single.is_empty() {
        true => Vec::new(),
        false => encoded(serving, info, (single, "input"), reading.truncate).await?,
    };
    let pairs = if pairs.is_empty() { Vec::new() } else { tokens_of(serving, pairs, &reading).await? };
    let (mut single, mut pairs) = (single.into_iter().map(TextTokens::from), pairs.into_iter());
    let texts: Vec<TextTokens> =
        is_pair.into_iter().filter_map(|is_pair| if is_pair { pairs.next() } else { single.next() }).collect();
    let usage = JudgedUsage::of(&texts);
    let class = |(index, probs)| TextClass::of(index, probs, &info.labels);
    let data = shares_of(serving, texts).await?.into_iter().enumerate().map(class).collect();
    Ok(Json(JudgedList::new(&worker, data, usage)))
}

fn class_draft(worker: &WorkerState, body: &[u8]) -> Result<ClassDraft, ErrorAnswer> {
    let fields = RequestFields::read(body, Some(&worker.defaults))?;
    let inputs = match fields.require::<ClassInputs>("input")? {
        ClassInputs::One(input) => vec![input],
        ClassInputs::More(inputs) => inputs,
    };
    if !(1..=MOST_PAIRS).contains(&inputs.len()) {
        let message = format!("'input' has {} texts; it may have 1 to {MOST_PAIRS}", inputs.len());
        return Err(ApiError::invalid("input", message).into());
    }
    let input = |input| match input {
        ClassInput::Text(text) => (text, None),
        ClassInput::Pair { text, text_pair } => (text, text_pair),
    };
    Ok(ClassDraft { inputs: inputs.into_iter().map(input).collect(), reading: reading_of(worker, &fields, "input")? })
}
