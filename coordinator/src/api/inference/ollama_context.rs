//! Ollama's `num_ctx`: the context that a request wants of its model. A model with less is loaded again with as much,
//! and one with more serves the request as it is (RC-29).

use std::sync::Arc;
use std::time::Duration;

use model_boss_core::{LayerOptions, LoadOptions};
use model_boss_protocol::{ApiError, KeepAlive, ModelId, Priority};
use model_boss_tasks::ModelPermit;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::api::admin::manage::size_with;
use crate::api::context::Context;

/// The wish of a request for a context of this many tokens.
pub(super) struct ContextRequest {
    /// The permission for the model.
    pub(super) permit: ModelPermit,
    pub(super) tokens: u64,
    pub(super) keep_alive: Option<KeepAlive>,
    pub(super) priority: Option<Priority>,
}

/// Loads the model again where it has a smaller context; returns the time that took.
pub(super) async fn make_room(context: &Context, request: ContextRequest) -> Result<Duration, ApiError> {
    let began = Instant::now();
    let ContextRequest { permit, tokens, keep_alive, priority } = request;
    let usual = LoadOptions { keep_alive, priority, ..LoadOptions::default() };
    let options = with_context(context, permit.model(), Some(tokens), usual).await;
    if options.context.is_none() {
        return Ok(Duration::ZERO);
    }
    let known = context.catalog.current().get(permit.model()).cloned();
    known.map_or(Ok(()), |known| context.pulls.admit(&known))?;
    context.scheduling.load(permit, options).done().await.map_err(|error| about_the_context(tokens, error))?;
    Ok(began.elapsed())
}

/// These options, with a context where the model has less, or would be loaded with less.
pub(super) async fn with_context(
    context: &Context,
    model: &ModelId,
    tokens: Option<u64>,
    options: LoadOptions,
) -> LoadOptions {
    let Some(wanted) = tokens else { return options };
    let Some(known) = context.catalog.current().get(model).cloned() else { return options };
    let name = model.clone();
    let told = context.scheduling.view(move |scheduler, _| {
        let served = scheduler.models().into_iter().find(|view| view.id == name).and_then(|view| view.context_length);
        (served, scheduler.wished(&name).0)
    });
    let (served, wished) = told.await.unwrap_or_default();
    let Some(usual) = served.or(wished.max(known.description.context_length)) else {
        // Without a stated context a model is loaded with as much as it was trained for and has memory for.
        return options;
    };
    let reading = Arc::clone(&known);
    // As with Ollama, no model gets more than it was trained for.
    let trained = spawn_blocking(move || reading.about().context_length).await.ok().flatten();
    let wanted = trained.map_or(wanted, |trained| wanted.min(trained));
    if wanted <= usual {
        return options;
    }
    let size = size_with(context, model, Some(wanted), LayerOptions::default()).await;
    LoadOptions { context: Some(wanted), size, ..options }
}

/// The error of a load for a context, which names the option.
pub(super) fn about_the_context(tokens: u64, error: ApiError) -> ApiError {
    let message = format!(
        "the model has a smaller context than the {tokens} tokens of 'options.num_ctx', and cannot be loaded with as much: {}",
        error.message
    );
    ApiError { message, param: Some("options.num_ctx".to_owned()), ..error }
}
