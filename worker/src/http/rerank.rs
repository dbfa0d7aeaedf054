//! `POST /v1/rerank`: documents in the order of their relevance to a query, as Cohere's and Jina's APIs have it; with
//! `texts` in place of `documents` as text-embeddings-inference has it.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use model_boss_engine::LabelShares;
use model_boss_protocol::ApiError;
use serde::{Deserialize, Serialize};

use super::body::reading;
use super::embeddings::TextPurpose;
use super::error::ErrorAnswer;
use super::fields::RequestFields;
use super::pairs::{JudgedUsage, MOST_PAIRS, PairReading, scores_of, tokens_of};
use crate::state::WorkerState;

/// Documents by their relevance.
#[derive(Serialize)]
pub(super) struct Ranking {
    object: &'static str,
    model: String,
    results: Vec<RankedDocument>,
    usage: JudgedUsage,
}

#[derive(Serialize)]
struct RankedDocument {
    /// The document's place in the request.
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<DocumentText>,
}

#[derive(Serialize)]
struct DocumentText {
    text: String,
}

/// Either form of an answer.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum RankAnswer {
    Ranking(Ranking),
    /// As text-embeddings-inference has it.
    Texts(Vec<RankedText>),
}

#[derive(Serialize)]
pub(super) struct RankedText {
    index: usize,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// The form of an answer that a request wants.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RankForm {
    Ranking,
    Texts,
}

/// A document of a request.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a text, or an object with 'text'")]
enum DraftDocument {
    Text(String),
    Object { text: String },
}

impl DraftDocument {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}

struct RankingDraft {
    form: RankForm,
    /// Whether scores are the model's own numbers.
    raw: bool,
    query: String,
    documents: Vec<String>,
    most: usize,
    returns_documents: bool,
    reading: PairReading,
}

/// Answers with the documents in the order of their scores. Equal ones stay in the order of the request.
pub(super) async fn rank(
    State(worker): State<Arc<WorkerState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<RankAnswer>, ErrorAnswer> {
    let RankingDraft { form, raw, query, documents, most, returns_documents, reading } =
        reading(&worker, body?, draft).await?;
    let serving = worker.serving()?;
    let pairs = documents.iter().map(|document| [query.clone(), document.clone()]).collect();
    let texts = tokens_of(serving, pairs, &reading).await?;
    let usage = JudgedUsage::of(&texts);
    // A relevance is between 0 and 1, whatever the model's own scores are.
    let how = if raw { LabelShares::Unchanged } else { LabelShares::Apart };
    let mut scores: Vec<(usize, f32)> = scores_of(serving, texts, how).await?.into_iter().enumerate().collect();
    scores.sort_by(|one, other| other.1.total_cmp(&one.1));
    scores.truncate(most);
    let mut documents: Vec<Option<String>> = documents.into_iter().map(Some).collect();
    let mut text_at = |index: usize| documents.get_mut(index).and_then(Option::take).filter(|_| returns_documents);
    if form == RankForm::Texts {
        let ranked = |(index, score)| RankedText { index, score, text: text_at(index) };
        return Ok(Json(RankAnswer::Texts(scores.into_iter().map(ranked).collect())));
    }
    let ranked = |(index, relevance_score): (usize, f32)| {
        let document = text_at(index).map(|text| DocumentText { text });
        RankedDocument { index, relevance_score, document }
    };
    let results = scores.into_iter().map(ranked).collect();
    Ok(Json(RankAnswer::Ranking(Ranking { object: "list", model: worker.spec.model.to_string(), results, usage })))
}

fn draft(worker: &WorkerState, body: &[u8]) -> Result<RankingDraft, ErrorAnswer> {
    let fields = RequestFields::read(body, Some(&worker.defaults))?;
    let texts: Option<Vec<String>> = if fields.is_given("documents") { None } else { fields.get("texts")? };
    let (form, field, documents) = match texts {
        Some(texts) => (RankForm::Texts, "texts", texts),
        None => {
            let documents: Vec<DraftDocument> = fields.require("documents")?;
            (RankForm::Ranking, "documents", documents.into_iter().map(DraftDocument::into_text).collect())
        }
    };
    if !(1..=MOST_PAIRS).contains(&documents.len()) {
        let message = format!("'{field}' has {} texts; it may have 1 to {MOST_PAIRS}", documents.len());
        return Err(ApiError::invalid(field, message).into());
    }
    let most = fields.whole(&["top_n", "top_k"], 1..=i64::MAX)?;
    let returns: Option<(_, bool)> = fields.first_of(&["return_documents", "return_text"])?;
    Ok(RankingDraft {
        form,
        raw: form == RankForm::Texts && fields.get("raw_scores")?.unwrap_or(false),
        query: fields.require("query")?,
        documents,
        most: most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX),
        returns_documents: returns.is_some_and(|(_, returns)| returns),
        reading: PairReading {
            before: TextPurpose::read(&fields, worker.serving()?.encoder()?)?.before.to_owned(),
            instruction: fields.first_of(&["instruction", "instruct"])?.map(|(_, text)| text),
            truncate: fields.get("truncate")?.unwrap_or(form == RankForm::Ranking),
            field,
        },
    })
}
