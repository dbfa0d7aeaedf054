//! Reranking, scores and classes, as Cohere, vLLM and text-embeddings-inference have them.

use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::common::{OneOrSeveralTexts, RequestOwnFields};

/// A request for the relevance of documents to a query.
#[derive(Debug, JsonSchema)]
pub struct RerankRequest {
    /// A model of the category `reranking`, or an alias.
    pub model: Option<String>,
    /// The query.
    pub query: String,
    /// The documents.
    pub documents: Option<Vec<DocumentBody>>,
    /// The documents, as text-embeddings-inference has them: the answer is then a list.
    pub texts: Option<Vec<String>>,
    /// The number of documents in the answer.
    pub top_n: Option<i64>,
    /// Whether the answer has the documents.
    pub return_documents: Option<bool>,
    /// The instruction for models that read one.
    pub instruction: Option<String>,
    /// Whether a text that is too long is cut.
    pub truncate: Option<bool>,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// A document.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum DocumentBody {
    /// A text.
    Text(String),
    /// An object with a text.
    Object {
        /// The text.
        text: String,
    },
}

/// Documents by their relevance.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum RankedAnswer {
    /// The answer to `documents`.
    Documents(RankedDocuments),
    /// The answer to `texts`.
    Texts(Vec<RankedTextBody>),
}

/// Documents, the most relevant first.
#[derive(Debug, JsonSchema)]
pub struct RankedDocuments {
    /// The model that answers.
    pub model: Option<String>,
    /// The documents.
    pub results: Vec<RankedBody>,
    /// The tokens of the request.
    pub usage: Option<Map<String, Value>>,
}

/// A document's place.
#[derive(Debug, JsonSchema)]
pub struct RankedBody {
    /// The number of the document in the request.
    pub index: u64,
    /// The relevance, from 0 to 1.
    pub relevance_score: f64,
    /// The document, on request.
    pub document: Option<Value>,
}

/// A text's place.
#[derive(Debug, JsonSchema)]
pub struct RankedTextBody {
    /// The number of the text in the request.
    pub index: u64,
    /// The relevance.
    pub score: f64,
    /// The text, on request.
    pub text: Option<String>,
}

/// A request for scores of pairs. `queries` and `documents` are other names of `text_1` and `text_2`.
#[derive(Debug, JsonSchema)]
pub struct ScoreRequest {
    /// A model of the category `reranking`, or an alias.
    pub model: Option<String>,
    /// One text, or as many as in `text_2`.
    pub text_1: Option<OneOrSeveralTexts>,
    /// The other texts of the pairs.
    pub text_2: Option<OneOrSeveralTexts>,
    /// Another name of `text_1`.
    pub queries: Option<OneOrSeveralTexts>,
    /// Another name of `text_2`.
    pub documents: Option<OneOrSeveralTexts>,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// A score for each pair.
#[derive(Debug, JsonSchema)]
pub struct Scores {
    /// The model that answers.
    pub model: String,
    /// The scores, in the order of the pairs.
    pub data: Vec<ScoreBody>,
    /// The tokens of the request.
    pub usage: Option<Map<String, Value>>,
}

/// The score of one pair.
#[derive(Debug, JsonSchema)]
pub struct ScoreBody {
    /// The number of the pair.
    pub index: u64,
    /// The score.
    pub score: f64,
}

/// A request for the shares of labels.
#[derive(Debug, JsonSchema)]
pub struct ClassifyRequest {
    /// A model of the category `reranking` or `vision`, or an alias.
    pub model: Option<String>,
    /// A text, a pair, an image, or a list of such.
    pub input: Option<Value>,
    /// The labels, for models of the category `vision`.
    pub labels: Option<Vec<String>>,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// The shares of labels for each text.
#[derive(Debug, JsonSchema)]
pub struct Classes {
    /// The model that answers.
    pub model: String,
    /// The shares, in the order of the texts.
    pub data: Vec<ClassBody>,
    /// The tokens of the request.
    pub usage: Option<Map<String, Value>>,
}

/// The shares of labels for one text.
#[derive(Debug, JsonSchema)]
pub struct ClassBody {
    /// The number of the text.
    pub index: u64,
    /// The label with the greatest share.
    pub label: Option<String>,
    /// The share of each label.
    pub probs: Vec<f64>,
}

/// A request of text-embeddings-inference for labels. It names no model: the only one of the category answers.
#[derive(Debug, JsonSchema)]
pub struct PredictRequest {
    /// A text, a pair of texts, or a list of lists of one or two texts.
    pub inputs: PredictInputs,
    /// A model, where there are several.
    pub model: Option<String>,
    /// Whether a text that is too long is cut.
    pub truncate: Option<bool>,
    /// Whether scores are the model's own numbers.
    pub raw_scores: Option<bool>,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// Texts and pairs of texts.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum PredictInputs {
    /// A text.
    Text(String),
    /// A text or a pair.
    One(Vec<String>),
    /// Texts and pairs.
    Several(Vec<Vec<String>>),
}

/// The labels of one text, or of each text of a list.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum PredictedLabels {
    /// Of one text.
    One(Vec<PredictionBody>),
    /// Of each text.
    Several(Vec<Vec<PredictionBody>>),
}

/// A label with its score.
#[derive(Debug, JsonSchema)]
pub struct PredictionBody {
    /// The score.
    pub score: f64,
    /// The label.
    pub label: String,
}
