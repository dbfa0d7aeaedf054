//! The model that a request means where it names none, and the categories of models.

use model_boss_core::Target;
use model_boss_http::peek::Peeked;
use model_boss_protocol::{ApiError, Category, ErrorCode};

use crate::api::context::Context;

/// The name of the model that requests without a name are for.
pub(super) const DEFAULT_MODEL: &str = "default";

/// Names the model of a request that names none, where its route allows that: the only one of this category.
pub(super) fn name_model(context: &Context, peeked: &mut Peeked, only: Option<Category>) -> Result<(), ApiError> {
    if let Some(category) = only.filter(|_| peeked.model.is_none() && peeked.task.is_none()) {
        peeked.model = only_model(context, category)?;
    }
    Ok(())
}

/// The model of a request that names none, where its API has no names: the only one of its category, unless one is the
/// default.
pub(super) fn only_model(context: &Context, category: Category) -> Result<Option<String>, ApiError> {
    let catalog = context.catalog.current();
    let of_category = || catalog.models().filter(|model| model.description.category == category);
    let default = catalog.find(DEFAULT_MODEL).is_some_and(|model| model.description.category == category);
    match (of_category().next(), of_category().count()) {
        (Some(only), 1) => Ok(Some(only.description.id.to_string())),
        (Some(_), count) if !default => {
            let message = format!("'model' is missing, and there are {count} models of category {category}");
            Err(ApiError::invalid("model", message))
        }
        _ => Ok(None),
    }
}

/// The categories whose models answer a route of jobs; empty for a route that every model answers.
pub(super) fn categories_of(path: &str) -> &'static [Category] {
    match path {
        "/v1/chat/completions" | "/v1/completions" | "/v1/responses" | "/v1/messages" => &[Category::Llm],
        "/v1/embeddings" => &[Category::Embedding, Category::Vision],
        "/v1/rerank" | "/v1/score" => &[Category::Reranking],
        "/v1/classify" => &[Category::Reranking, Category::Vision],
        "/v1/images/generations" | "/v1/images/edits" => &[Category::Diffusion],
        "/v1/audio/speech" => &[Category::Tts],
        "/v1/audio/transcriptions" | "/v1/audio/translations" => &[Category::Transcription],
        _ => &[],
    }
}

/// Whether a rung is a model of this machine of this category.
pub(super) fn is_of(context: &Context, target: &Target, category: Category) -> bool {
    match target {
        Target::Local(id) => {
            context.catalog.current().get(id).is_some_and(|model| model.description.category == category)
        }
        Target::Cloud { .. } => false,
    }
}

/// Whether a rung is a model of a provider that takes requests of Anthropic's API as they are.
pub(super) fn is_passed_to(context: &Context, target: &Target) -> bool {
    matches!(target, Target::Cloud { provider, .. } if context.clouds.takes_messages(provider))
}

/// The category of a model of this machine.
pub(super) fn own_category(context: &Context, target: &Target) -> Result<Category, ApiError> {
    match target {
        Target::Local(id) => Ok(context.catalog.current().get(id).map_or(Category::Llm, |m| m.description.category)),
        Target::Cloud { provider, .. } => {
            let message = format!("provider '{provider}' has no such route; ask a model of this machine");
            Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param("model"))
        }
    }
}
