//! The images of a conversation: from parts of messages to pictures with their places in the prompt. Images are decoded
//! within limits, off the threads that serve sockets.

use std::sync::Arc;

use model_boss_engine::text::{Conversation, TemplateValue};
use model_boss_engine::{ImageTiles, PromptImage};
use model_boss_images::{ImageError, ImageLimits, ImagePartLaid, SightFacts, decode, image_bytes};
use model_boss_protocol::{ApiError, ErrorCode};

use super::error::{ErrorAnswer, text_error};
use super::pictures::refusal;
use crate::state::{Serving, WorkerState};
use crate::text::{ChatQuestion, ChatTokens, ImageTexts, TextFacts};

/// An image of a message, undecoded.
#[derive(Debug)]
struct SentImage {
    /// The field that it came in.
    field: String,
    url: String,
}

/// The images of a conversation in the order of their marks.
#[derive(Debug)]
pub(super) struct SentImages {
    sight: Option<Arc<SightFacts>>,
    model: String,
    sent: Vec<SentImage>,
}

/// A conversation and its images.
pub(super) struct ChatInput {
    pub(super) conversation: Conversation,
    pub(super) images: SentImages,
}

/// A question for a conversation's tokens, which waits for the texts of its images if it has any.
pub(super) enum ChatAsked {
    Ready(ChatQuestion),
    WithImages(ChatInput),
}

/// The tokens of a conversation, and the images among them.
pub(super) struct ChatPrompt {
    pub(super) tokens: Vec<u32>,
    pub(super) images: Vec<PromptImage>,
    /// As in [`ChatTokens`].
    pub(super) transcript: bool,
}

impl SentImages {
    /// No image yet.
    pub(super) fn new(worker: &WorkerState) -> Self {
        let sight = worker.serving().ok().and_then(|serving| serving.info.sight.clone());
        Self { sight, model: worker.spec.model.to_string(), sent: Vec::new() }
    }

    /// Takes one more, and returns how the chat template gets it: as a part, or as the text of its mark.
    pub(super) fn take(&mut self, field: String, url: String, facts: &TextFacts) -> Result<TemplateValue, ApiError> {
        let Some(sight) = &self.sight else {
            let message = format!(
                "the model '{}' reads text only, and '{field}' is an image; leave it out, or ask a model that has \
                 'image' among its 'input_modalities' in /v1/models",
                self.model
            );
            return Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param(field));
        };
        let limit = ImageLimits::default().count;
        if self.sent.len() == limit {
            let message = format!("'{field}' is one image too many: a request may have {limit}");
            return Err(ApiError::new(ErrorCode::RequestTooLarge, message).with_param(field));
        }
        self.sent.push(SentImage { field, url });
        Ok(match facts.shows_images {
            true => TemplateValue::from_pairs([("type", "image".into())]),
            false => sight.mark.clone().into(),
        })
    }
}

impl ChatInput {
    /// The question for its tokens, of which there are at most `most_tokens`.
    pub(super) fn asked(self, most_tokens: usize) -> Result<ChatAsked, ErrorAnswer> {
        if !self.images.sent.is_empty() {
            return Ok(ChatAsked::WithImages(self));
        }
        let question = ChatQuestion::new(self.conversation, most_tokens, None);
        Ok(ChatAsked::Ready(question.map_err(|error| text_error(error, "messages", most_tokens))?))
    }
}

impl ChatAsked {
    /// The tokens of the prompt and its images.
    pub(super) async fn prompt(self, worker: &Arc<WorkerState>) -> Result<ChatPrompt, ErrorAnswer> {
        let serving = worker.serving()?;
        let context = serving.info.context_length;
        let failed = |error| text_error(error, "messages", context);
        let input = match self {
            Self::Ready(question) => {
                let ChatTokens { tokens, transcript } = serving.text.chat(question).await.map_err(failed)?;
                return Ok(ChatPrompt { tokens, images: Vec::new(), transcript });
            }
            Self::WithImages(input) => input,
        };
        let ChatInput { conversation, images } = input;
        let Some(sight) = images.sight else { return Err(misplaced().into()) };
        let laid = laid_out(serving, Arc::clone(&sight), images.sent).await?;
        let texts = ImageTexts { mark: sight.mark.clone(), texts: laid.texts };
        // Each place is a token more than the text has.
        let question = ChatQuestion::new(conversation, context, Some(texts)).map_err(failed)?;
        let ChatTokens { tokens, transcript } = serving.text.chat(question).await.map_err(failed)?;
        let (tokens, images) = placed(&tokens, &sight, serving, laid.parts)?;
        Ok(ChatPrompt { tokens, images, transcript })
    }
}

/// Images as text and tiles.
#[derive(Default)]
struct LaidImages {
    texts: Vec<String>,
    parts: Vec<ImagePartLaid>,
}

/// Decodes images one after the other.
async fn laid_out(serving: &Serving, sight: Arc<SightFacts>, sent: Vec<SentImage>) -> Result<LaidImages, ErrorAnswer> {
    // The semaphore is never closed.
    let Ok(_place) = serving.images.places.acquire().await else { return Err(misplaced().into()) };
    let context = serving.info.context_length;
    let work = move || -> Result<LaidImages, ApiError> {
        let (limits, mut laid, mut places) = (ImageLimits::default(), LaidImages::default(), 0_usize);
        for SentImage { field, url } in sent {
            let refused = |error: ImageError| refusal(&field, &error);
            let file = image_bytes(&url, &limits).map_err(refused)?;
            drop(url);
            let image = decode(&file, &limits).map_err(refused)?;
            let of_image = sight.lay_out(image).map_err(refused)?;
            places += of_image.parts.iter().map(|part| part.places).sum::<usize>();
            if places > context {
                let message = format!(
                    "This model's maximum context length is {context} tokens. However, the images up to '{field}' take \
                     {places} tokens; send fewer or smaller ones, or use a model with a longer context"
                );
                return Err(ApiError::new(ErrorCode::ContextLengthExceeded, message).with_param(field));
            }
            laid.texts.push(of_image.text);
            laid.parts.extend(of_image.parts);
        }
        Ok(laid)
    };
    // A panic on a blocking thread has already been reported on stderr.
    let laid = tokio::task::spawn_blocking(work).await;
    let failed = || ApiError::new(ErrorCode::Internal, "the worker failed on an image of this request");
    Ok(laid.map_err(|_| failed())??)
}

/// The tokens with all places of each image, which the text has one token for.
fn placed(
    tokens: &[u32],
    sight: &SightFacts,
    serving: &Serving,
    parts: Vec<ImagePartLaid>,
) -> Result<(Vec<u32>, Vec<PromptImage>), ErrorAnswer> {
    let found = tokens.iter().filter(|token| **token == sight.token).count();
    if found != parts.len() {
        let message = format!(
            "the prompt has {found} tokens '{}' for {} places of images; leave the word out of texts",
            sight.place,
            parts.len()
        );
        return Err(ApiError::invalid("messages", message).into());
    }
    // Some models have a token for places that has no embedding.
    let place = if (sight.token as usize) < serving.info.vocab_size { sight.token } else { 0 };
    let (mut all, mut images, mut parts) = (Vec::with_capacity(tokens.len()), Vec::new(), parts.into_iter());
    for token in tokens {
        let part = if *token == sight.token { parts.next() } else { None };
        let Some(ImagePartLaid { tiles, sent, places, grid }) = part else {
            all.push(*token);
            continue;
        };
        let digest = serving.images.digests.of(&tiles, sent);
        let picture = Arc::new(ImageTiles { tiles, sent, digest });
        images.push(PromptImage { first: all.len(), places, grid, picture });
        all.extend(std::iter::repeat_n(place, places));
    }
    Ok((all, images))
}

fn misplaced() -> ApiError {
    ApiError::new(ErrorCode::Internal, "the worker has lost the images of this request")
}
