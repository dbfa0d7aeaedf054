//! `POST /v1/audio/speech` and `GET /v1/audio/voices`: models that speak, and their voices.

use std::sync::Arc;

use axum::response::Response;
use model_boss_catalog::Model;
use model_boss_dialects::SPEECH;
use model_boss_http::body::json;
use model_boss_http::path::{parameter, unknown_model};
use model_boss_protocol::{ApiError, Category, ModelId, SpeechVoice};
use schemars::JsonSchema;
use serde::Serialize;

use super::openai::{InferenceRoute, infer};
use crate::api::blocking::blocking;
use crate::api::context::Context;
use crate::api::route::Call;

/// `POST /v1/audio/speech`.
pub(crate) async fn speech(call: Call) -> Result<Response, ApiError> {
    infer(call, InferenceRoute::at(SPEECH, Category::Tts).unnamed()).await
}

/// A voice of a model that speaks.
#[derive(Serialize, JsonSchema)]
pub(crate) struct VoiceObject {
    /// The name in requests.
    id: String,
    /// The name for people.
    name: String,
    /// The language, as the model's files or its manifest name it.
    language: Option<String>,
    /// The model.
    model: ModelId,
    /// Whether requests without a voice get this one.
    default: bool,
}

/// The voices of all models that a client may use.
#[derive(Serialize, JsonSchema)]
pub(crate) struct VoiceList {
    object: &'static str,
    voices: Vec<VoiceObject>,
}

/// `GET /v1/audio/voices`, with `?model=` of one model.
pub(crate) async fn voices(call: Call) -> Result<Response, ApiError> {
    let client = call.client()?;
    let context = Arc::clone(&call.context);
    let wanted = parameter(call.request.uri(), "model").map(|name| name.into_owned());
    blocking(move || {
        let catalog = context.catalog.current();
        let wanted = match &wanted {
            None => None,
            Some(name) => Some(catalog.find(name).ok_or_else(|| unknown_model(name))?.description.id.clone()),
        };
        let speaks = |model: &&Arc<Model>| {
            let id = &model.description.id;
            model.description.category == Category::Tts && wanted.as_ref().is_none_or(|wanted| wanted == id)
        };
        let may_use = |model: &&Arc<Model>| may_use(&context, &client, model);
        let models = catalog.models().filter(speaks).filter(may_use);
        let voices = models.flat_map(|model| voices_of(model)).collect();
        json(&VoiceList { object: "list", voices })
    })
    .await?
}

fn may_use(context: &Context, client: &model_boss_protocol::ClientId, model: &Model) -> bool {
    context.tasks.may_use(client, model.description.id.as_str(), &context.catalog)
}

/// The voices of one model. The first time that reads its files.
fn voices_of(model: &Model) -> Vec<VoiceObject> {
    let object = |(at, voice): (usize, SpeechVoice)| VoiceObject {
        name: voice.name.unwrap_or_else(|| voice.id.clone()),
        id: voice.id,
        language: voice.language,
        model: model.description.id.clone(),
        default: at == 0,
    };
    model.voices().into_iter().enumerate().map(object).collect()
}
