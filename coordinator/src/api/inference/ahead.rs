//! The check of a job's body when the job is accepted, long before its route reads it.

use bytes::Bytes;
use http::request::Parts;
use model_boss_core::Target;
use model_boss_http::path::unknown_model;
use model_boss_http::peek::{Peeked, peek};
use model_boss_protocol::ApiError;

use super::openai::understood;
use crate::api::context::Context;

/// Refuses the body of a job at once, where its route would refuse the names in it later (TR-1, RC-24).
pub(crate) fn check_ahead(context: &Context, path: &str, body: &Bytes, head: &Parts) -> Result<(), ApiError> {
    check_names(context, path, peek(body, head, context.limits.json())?)
}

/// The same of fields that were read already.
pub(crate) fn check_names(context: &Context, path: &str, peeked: Peeked) -> Result<(), ApiError> {
    // Routes of other APIs have names of their own, or none.
    if !path.starts_with("/v1/") || (peeked.model.is_none() && peeked.task.is_none()) {
        return Ok(());
    }
    let (_, resolved) = understood(context, peeked)?;
    match &resolved.ladder().first.target {
        // A model by its path is found when it is loaded.
        Target::Local(id) if resolved.ladder().rest.is_empty() && !id.as_str().starts_with(['/', '.', '~']) => {
            match context.catalog.current().find(id.as_str()) {
                Some(_) => Ok(()),
                None => Err(unknown_model(id.as_str())),
            }
        }
        Target::Local(_) | Target::Cloud { .. } => Ok(()),
    }
}
