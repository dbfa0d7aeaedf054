//! The check of a job's body when the job is accepted, long before its route reads it.

use bytes::Bytes;
use http::request::Parts;
use model_boss_core::{ModelDescription, Target};
use model_boss_http::path::unknown_model;
use model_boss_http::peek::{Peeked, peek};
use model_boss_protocol::{ApiError, ErrorCode};

use super::meant::categories_of;
use super::understood_body::understood;
use crate::api::context::Context;

/// Refuses the body of a job at once, where its route would refuse the names in it later (TR-1, RC-24).
/// Returns the name of the model that is asked first, if the body tells it.
pub(crate) fn check_ahead(
    context: &Context,
    path: &str,
    body: &Bytes,
    head: &Parts,
) -> Result<Option<String>, ApiError> {
    check_names(context, path, peek(body, head, context.limits.json())?)
}

/// The same of fields that were read already.
pub(crate) fn check_names(context: &Context, path: &str, peeked: Peeked) -> Result<Option<String>, ApiError> {
    // Routes of other APIs have names of their own, or none.
    if !path.starts_with("/v1/") || (peeked.model.is_none() && peeked.task.is_none()) {
        return Ok(peeked.model.map(|model| model.to_string()));
    }
    let (_, resolved) = understood(context, peeked)?;
    let first = &resolved.ladder().first.target;
    if let Target::Local(id) = first
        // Another rung may answer.
        && resolved.ladder().rest.is_empty()
    {
        let catalog = context.catalog.current();
        match catalog.find(id.as_str()) {
            Some(model) => suits(path, &model.description)?,
            // A model by its path is found when it is loaded.
            None if id.as_str().starts_with(['/', '.', '~']) => {}
            None => return Err(unknown_model(id.as_str())),
        }
    }
    Ok(Some(match first {
        Target::Local(id) => id.as_str().to_owned(),
        cloud @ Target::Cloud { .. } => format!("{cloud:?}"),
    }))
}

/// Refuses a model that does not answer the route.
fn suits(path: &str, model: &ModelDescription) -> Result<(), ApiError> {
    let wanted = categories_of(path);
    if wanted.is_empty() || wanted.contains(&model.category) {
        return Ok(());
    }
    let needs: Vec<String> = wanted.iter().map(ToString::to_string).collect();
    let message = format!(
        "model '{}' is of category {} and cannot do what this route needs ({})",
        model.id,
        model.category,
        needs.join(" or ")
    );
    Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param("model"))
}
