//! `POST /v1/rerank`: documents in the order of their relevance to a query, as Cohere's and Jina's APIs have it.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use model_boss_protocol::ApiError;
use serde::{Deserialize, Serialize};

use super::body::reading;
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
) -> Result<Json<Ranking>, ErrorAnswer> {
    let RankingDraft { query, documents, most, returns_documents, reading } = reading(&worker, body?, draft).await?;
    let serving = worker.serving()?;
    let pairs = documents.iter().map(|document| [query.clone(), document.clone()]).collect();
    let texts = tokens_of(serving, pairs, &reading).await?;
    let usage = JudgedUsage::of(&texts);
    let mut scores: Vec<(usize, f32)> = scores_of(serving, texts).await?.into_iter().enumerate().collect();
    scores.sort_by(|one, other| other.1.total_cmp(&one.1));
    scores.truncate(most);
    let mut documents: Vec<Option<String>> = documents.into_iter().map(Some).collect();
    let ranked = |(index, relevance_score): (usize, f32)| {
        let text = documents.get_mut(index).and_then(Option::take).filter(|_| returns_documents);
        RankedDocument { index, relevance_score, document: text.map(|text| DocumentText { text }) }
    };
    let results = scores.into_iter().map(ranked).collect();
    Ok(Json(Ranking { object: "list", model: worker.spec.model.to_string(), results, usage }))
}

fn draft(worker: &WorkerState, body: &[u8]) -> Result<RankingDraft, ErrorAnswer> {
    let fields = RequestFields::read(body, Some(&worker.defaults))?;
    let documents: Vec<DraftDocument> = fields.require("documents")?;
    let documents: Vec<String> = documents.into_iter().map(DraftDocument::into_text).collect();
    if !(1..=MOST_PAIRS).contains(&documents.len()) {
        let message = format!("'documents' has {} texts; it may have 1 to {MOST_PAIRS}", documents.len());
        return Err(ApiError::invalid("documents", message).into());
    }
    let most = fields.whole(&["top_n", "top_k"], 1..=i64::MAX)?;
    Ok(RankingDraft {
        query: fields.require("query")?,
        documents,
        most: most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX),
        returns_documents: fields.get("return_documents")?.unwrap_or(false),
        reading: PairReading {
            instruction: fields.first_of(&["instruction", "instruct"])?.map(|(_, text)| text),
            truncate: fields.get("truncate")?.unwrap_or(true),
            field: "documents",
        },
    })
}
