//! `POST /v1/embeddings` and `/v1/classify` of models that read texts and images: vectors that can be compared, and the
//! shares of labels that a request brings itself.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use model_boss_engine::{EncodedForm, SightInfo};
use model_boss_protocol::ApiError;
use serde::Deserialize;

use super::body::reading;
use super::embeddings::{EmbeddingList, MOST_TEXTS, VectorWish, checked, encoded, step_error};
use super::error::ErrorAnswer;
use super::fields::RequestFields;
use super::pairs::{JudgedUsage, shares};
use super::pictures::{Picture, read_pictures};
use super::score::{JudgedList, TextClass};
use crate::encoding::{EncodeItem, TextTokens};
use crate::state::{Serving, WorkerState};

/// Labels of one request.
const MOST_LABELS: usize = 1000;

/// The sentence that labels are put into, as in zero-shot classification by `transformers`.
const TEMPLATE: &str = "This is a photo of {}.";

/// The place of a label in the sentence.
const HOLE: &str = "{}";

/// The forms of `input`.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a text, a list of tokens, an object with 'type': 'text' or 'image_url', or a list of texts, lists of tokens and such objects"
)]
enum VisionInput {
    Text(String),
    Tokens(Vec<u32>),
    Items(Vec<InputItem>),
    Part(InputPart),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a text, a list of tokens, or an object with 'type': 'text' or 'image_url'")]
enum InputItem {
    Text(String),
    Tokens(Vec<u32>),
    Part(InputPart),
}

/// A text or an image, as parts of messages have them in OpenAI's chat completions and Responses; without a type also
/// as Jina has them.
#[derive(Deserialize)]
struct InputPart {
    #[serde(rename = "type")]
    kind: Option<String>,
    text: Option<String>,
    image_url: Option<ImageLink>,
    image: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a URL, or an object with 'url'")]
enum ImageLink {
    Url(String),
    Object { url: String },
}

/// An input as it was read.
enum DraftItem {
    Text(String),
    Tokens(Vec<u32>),
    Picture(Picture),
}

struct VisionDraft {
    inputs: Vec<DraftItem>,
    truncate: bool,
    wish: VectorWish,
}

struct LabelDraft {
    inputs: Vec<DraftItem>,
    truncate: bool,
    labels: Vec<String>,
    /// The labels, each in its sentence.
    sentences: Vec<String>,
}

/// Answers with a vector for each text and image.
pub(super) async fn embed(
    State(worker): State<Arc<WorkerState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<EmbeddingList>, ErrorAnswer> {
    let VisionDraft { inputs, truncate, wish } = reading(&worker, body?, draft).await?;
    let serving = worker.serving()?;
    let (items, tokens) = items_of(serving, inputs, truncate).await?;
    let vectors = vectors_of(serving, items).await?;
    Ok(Json(EmbeddingList::new(&worker, vectors, wish, tokens)))
}

/// Answers with the shares of the request's labels in each text and image.
pub(super) async fn classify(
    State(worker): State<Arc<WorkerState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<JudgedList<TextClass>>, ErrorAnswer> {
    let LabelDraft { inputs, truncate, labels, sentences } = reading(&worker, body?, label_draft).await?;
    let serving = worker.serving()?;
    let sight = serving.sight()?;
    let sentences = sentences.into_iter().map(DraftItem::Text).collect();
    let (mut items, of_labels) = items_of(serving, sentences, false).await.map_err(about_labels)?;
    let (inputs, of_inputs) = items_of(serving, inputs, truncate).await?;
    items.extend(inputs);
    let mut vectors = vectors_of(serving, items).await?;
    let of_images = vectors.split_off(labels.len());
    let class = |(index, image): (usize, Vec<f32>)| {
        let numbers: Vec<f32> = vectors.iter().map(|label| compared(sight, label, &image)).collect();
        TextClass::of(index, shares(&numbers, sight.shares), &labels)
    };
    let data = of_images.into_iter().enumerate().map(class).collect();
    Ok(Json(JudgedList::new(&worker, data, JudgedUsage::of_tokens(of_labels + of_inputs))))
}

/// Errors about sentences name the field of the labels.
fn about_labels(mut error: ErrorAnswer) -> ErrorAnswer {
    error.0.message = error.0.message.replace("'input'", "'labels'");
    error.0.param = Some("labels".to_owned());
    error
}

fn compared(sight: &SightInfo, one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(one, other)| one * other).sum::<f32>() * sight.scale + sight.bias
}

async fn vectors_of(serving: &Serving, items: Vec<EncodeItem>) -> Result<Vec<Vec<f32>>, ErrorAnswer> {
    let rows = serving.encode_items(items, EncodedForm::Whole).await?.map_err(|error| step_error(&error))?;
    Ok(rows.into_iter().map(|rows| rows.into_iter().next().unwrap_or_default()).collect())
}

/// The inputs as the model reads them, in their order, and the number of their tokens and patches.
async fn items_of(
    serving: &Serving,
    inputs: Vec<DraftItem>,
    truncate: bool,
) -> Result<(Vec<EncodeItem>, usize), ErrorAnswer> {
    let (info, sight) = (serving.encoder()?, serving.sight()?);
    let (mut texts, mut lists, mut pictures) = (Vec::new(), Vec::new(), Vec::new());
    let kinds: Vec<InputKind> = inputs
        .into_iter()
        .map(|input| match input {
            DraftItem::Text(text) => {
                texts.push(sight.letters.of(&text));
                InputKind::Text
            }
            DraftItem::Tokens(tokens) => {
                lists.push(tokens);
                InputKind::Tokens
            }
            DraftItem::Picture(picture) => {
                pictures.push(picture);
                InputKind::Picture
            }
        })
        .collect();
    let pictures = read_pictures(sight, pictures).await?;
    let texts = if texts.is_empty() { Vec::new() } else { encoded(serving, info, (texts, "input"), truncate).await? };
    let texts = texts.into_iter().map(|tokens| ended(tokens, sight.end, info.max_tokens));
    let as_item = |tokens: Vec<u32>| EncodeItem::Text(TextTokens::from(tokens));
    let mut texts = texts.map(as_item);
    let mut lists = checked(info, (lists, "input"), truncate)?.into_iter().map(as_item);
    let mut pictures = pictures.into_iter();
    let next = |kind: InputKind| match kind {
        InputKind::Text => texts.next(),
        InputKind::Tokens => lists.next(),
        InputKind::Picture => pictures.next(),
    };
    let items: Vec<EncodeItem> = kinds.into_iter().filter_map(next).collect();
    let rows = items.iter().map(EncodeItem::rows).sum();
    Ok((items, rows))
}

#[derive(Clone, Copy)]
enum InputKind {
    Text,
    Tokens,
    Picture,
}

/// A text with the token that ends it, if it has none yet.
fn ended(mut tokens: Vec<u32>, end: Option<u32>, most: usize) -> Vec<u32> {
    if let Some(end) = end.filter(|end| tokens.last() != Some(end)) {
        tokens.truncate(most.saturating_sub(1));
        tokens.push(end);
    }
    tokens
}

fn draft(worker: &WorkerState, body: &[u8]) -> Result<VisionDraft, ErrorAnswer> {
    let fields = RequestFields::read(body, Some(&worker.defaults))?;
    let info = worker.serving()?.encoder()?;
    Ok(VisionDraft {
        inputs: inputs_of(&fields)?,
        truncate: fields.get("truncate")?.unwrap_or(true),
        wish: VectorWish::read(&fields, info)?,
    })
}

fn label_draft(worker: &WorkerState, body: &[u8]) -> Result<LabelDraft, ErrorAnswer> {
    let fields = RequestFields::read(body, Some(&worker.defaults))?;
    let labels = fields.first_of::<Vec<String>>(&["labels", "candidate_labels"])?;
    let (_, labels) = labels.ok_or_else(|| {
        ApiError::invalid("labels", "'labels' is missing: this model compares inputs with labels of the request")
    })?;
    if !(1..=MOST_LABELS).contains(&labels.len()) {
        let message = format!("'labels' has {} texts; it may have 1 to {MOST_LABELS}", labels.len());
        return Err(ApiError::invalid("labels", message).into());
    }
    let template = fields.get::<String>("hypothesis_template")?.unwrap_or_else(|| TEMPLATE.to_owned());
    if !template.contains(HOLE) {
        let message = format!("'hypothesis_template' has no {HOLE}, the place of the label");
        return Err(ApiError::invalid("hypothesis_template", message).into());
    }
    Ok(LabelDraft {
        inputs: inputs_of(&fields)?,
        truncate: fields.get("truncate")?.unwrap_or(true),
        sentences: labels.iter().map(|label| template.replacen(HOLE, label, 1)).collect(),
        labels,
    })
}

fn inputs_of(fields: &RequestFields<'_>) -> Result<Vec<DraftItem>, ApiError> {
    let inputs = match fields.require::<VisionInput>("input")? {
        VisionInput::Text(text) => vec![DraftItem::Text(text)],
        VisionInput::Tokens(tokens) if !tokens.is_empty() => vec![DraftItem::Tokens(tokens)],
        VisionInput::Tokens(_) => Vec::new(),
        VisionInput::Part(part) => vec![part.into_item("input")?],
        VisionInput::Items(items) => items
            .into_iter()
            .enumerate()
            .map(|(at, item)| match item {
                InputItem::Text(text) => Ok(DraftItem::Text(text)),
                InputItem::Tokens(tokens) => Ok(DraftItem::Tokens(tokens)),
                InputItem::Part(part) => part.into_item(&format!("input[{at}]")),
            })
            .collect::<Result<_, ApiError>>()?,
    };
    if !(1..=MOST_TEXTS).contains(&inputs.len()) {
        let message = format!("'input' has {} items; it may have 1 to {MOST_TEXTS}", inputs.len());
        return Err(ApiError::invalid("input", message));
    }
    Ok(inputs)
}

impl InputPart {
    fn into_item(self, place: &str) -> Result<DraftItem, ApiError> {
        let Self { kind, text, image_url, image } = self;
        let missing = |field: &str| {
            let place = format!("{place}.{field}");
            ApiError::invalid(place.clone(), format!("'{place}' is missing"))
        };
        let linked = |link: ImageLink| match link {
            ImageLink::Url(url) => Picture { place: format!("{place}.image_url"), url },
            ImageLink::Object { url } => Picture { place: format!("{place}.image_url.url"), url },
        };
        match (kind.as_deref(), text, image_url.map(linked), image) {
            (Some("text" | "input_text"), Some(text), ..) | (None, Some(text), None, None) => Ok(DraftItem::Text(text)),
            (Some("text" | "input_text"), ..) => Err(missing("text")),
            (Some("image_url" | "input_image"), _, Some(picture), _) | (None, None, Some(picture), None) => {
                Ok(DraftItem::Picture(picture))
            }
            (Some("image_url" | "input_image"), ..) => Err(missing("image_url")),
            (None, None, None, Some(image)) => {
                // By itself base64 has no colon.
                let url = if image.contains(':') { image } else { format!("data:;base64,{image}") };
                Ok(DraftItem::Picture(Picture { place: format!("{place}.image"), url }))
            }
            (None, ..) => Err(missing("type")),
            (Some(other), ..) => {
                let place = format!("{place}.type");
                let message = format!("'{place}' is '{other}'; it may be 'text' or 'image_url'");
                Err(ApiError::invalid(place, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_3_a_text_ends_with_its_token() {
        assert_eq!(ended(vec![5, 6], Some(1), 4), [5, 6, 1]);
        assert_eq!(ended(vec![5, 1], Some(1), 4), [5, 1]);
        assert_eq!(ended(vec![5, 6, 7, 8], Some(1), 4), [5, 6, 7, 1]);
        assert_eq!(ended(vec![5, 6], None, 4), [5, 6]);
    }
}
