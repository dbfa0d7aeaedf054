//! Embeddings, as OpenAI's API and text-embeddings-inference have them.

use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::common::{RequestOwnFields, UsageBody};

/// A request for vectors of texts, or of images by models that read both.
#[derive(Debug, JsonSchema)]
pub struct EmbeddingsRequest {
    /// A model of the category `embedding` or `vision`, an alias, or `PROVIDER:MODEL`.
    pub model: Option<String>,
    /// A text, texts, tokens, lists of tokens, or parts with images.
    pub input: Option<Value>,
    /// A conversation whose parts are embedded, for models that see.
    pub messages: Option<Vec<Map<String, Value>>>,
    /// `float` or `base64`.
    pub encoding_format: Option<VectorEncoding>,
    /// The length of the vectors.
    pub dimensions: Option<i64>,
    /// Whether a text that is too long is cut.
    pub truncate: Option<bool>,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// The form of a vector.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub enum VectorEncoding {
    /// Numbers.
    Float,
    /// The bytes of the numbers, little-endian f32, in base64.
    Base64,
}

/// Vectors.
#[derive(Debug, JsonSchema)]
pub struct EmbeddingsBody {
    /// `list`.
    pub object: String,
    /// The vectors, in the order of the texts.
    pub data: Vec<EmbeddingObject>,
    /// The model that answers.
    pub model: String,
    /// The tokens of the request.
    pub usage: Option<UsageBody>,
}

/// One vector.
#[derive(Debug, JsonSchema)]
pub struct EmbeddingObject {
    /// `embedding`.
    pub object: String,
    /// The number of the text.
    pub index: u64,
    /// The vector.
    pub embedding: VectorBody,
}

/// A vector as numbers or as text.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum VectorBody {
    /// Numbers.
    Numbers(Vec<f64>),
    /// Base64.
    Base64(String),
}

/// A request of text-embeddings-inference. It names no model: the only one of the category answers.
#[derive(Debug, JsonSchema)]
pub struct EmbedRequest {
    /// A text, tokens, or a list of both.
    pub inputs: EmbedInputs,
    /// A model, where there are several.
    pub model: Option<String>,
    /// Whether a text that is too long is cut.
    pub truncate: Option<bool>,
    /// Whether vectors have the length 1.
    pub normalize: Option<bool>,
    /// The length of the vectors.
    pub dimensions: Option<i64>,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// The texts of a request of text-embeddings-inference.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum EmbedInputs {
    /// A text.
    Text(String),
    /// The tokens of a text.
    Tokens(Vec<u32>),
    /// Texts and lists of tokens.
    Several(Vec<EmbedInput>),
}

/// A text, or its tokens.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum EmbedInput {
    /// A text.
    Text(String),
    /// Its tokens.
    Tokens(Vec<u32>),
}

/// A vector for each text.
#[derive(Debug, JsonSchema)]
pub struct Vectors(pub Vec<Vec<f64>>);

/// A vector for each token of each text.
#[derive(Debug, JsonSchema)]
pub struct TokenVectors(pub Vec<Vec<Vec<f64>>>);
