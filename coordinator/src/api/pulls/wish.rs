//! The model that a caller wants to have pulled, and whether the caller may.
//!
//! A caller that may give orders for the whole machine may pull any model. Another one may pull the models that
//! manifests name and that it may use, where `auto_pull` lets its requests do the same.

use std::sync::Arc;

use model_boss_access::KeyScope;
use model_boss_catalog::Model;
use model_boss_hub::HubName;
use model_boss_protocol::{ApiError, ErrorCode};

use crate::api::route::Call;
use crate::pulls::PullOrder;

/// The order to pull a model that a manifest names.
pub(super) fn of_model(call: &Call, model: &Arc<Model>, field: &str) -> Result<PullOrder, ApiError> {
    let id = &model.description.id;
    call.permit_model(id)?;
    let Some(name) = model.hub_name() else {
        let message =
            format!("model '{id}' is at {}, and its manifest names no repository of a hub", model.source.display());
        return Err(ApiError::invalid(field, message));
    };
    if !call.context.pulls.is_auto() {
        may_manage(call)?;
    }
    Ok(PullOrder { name, model: Some(id.to_string()), wants_manifest: false, is_kept: false })
}

/// The order to pull a model that no manifest names.
pub(super) fn of_name(call: &Call, text: &str, field: &str) -> Result<PullOrder, ApiError> {
    may_manage(call)?;
    let name: HubName = text.parse().map_err(|error| ApiError::invalid(field, format!("{error}")))?;
    Ok(PullOrder { name, model: None, wants_manifest: true, is_kept: false })
}

/// Whether the caller may have any model pulled: its key permits orders, and its client is held to no list of models.
pub(super) fn may_manage(call: &Call) -> Result<(), ApiError> {
    if !call.identity.permits(&[KeyScope::Manage]) {
        let message =
            format!("the key of '{}' lacks the scope manage; it may not have models downloaded", call.identity.name());
        return Err(ApiError::new(ErrorCode::InsufficientScope, message));
    }
    call.permit_machine().map(|_| ()).map_err(|error| {
        let message = format!("{}; it may not have models downloaded", error.message);
        ApiError::new(ErrorCode::InsufficientScope, message)
    })
}
