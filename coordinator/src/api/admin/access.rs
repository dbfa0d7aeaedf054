//! `GET /api/v1/access`: the sender of the request, and what it may do. Pages and programs learn from it which orders
//! to offer.

use axum::response::Response;
use model_boss_access::KeyScope;
use model_boss_http::body::json;
use model_boss_protocol::ApiError;

use super::view_bodies::AccessAnswer;
use crate::api::route::Call;

/// Answers every holder of a valid key.
pub(crate) async fn show(call: Call) -> Result<Response, ApiError> {
    let sender = &call.identity;
    json(&AccessAnswer {
        needs_key: call.context.keys.current().needed,
        client: sender.bound().map(|record| record.name.clone()),
        scopes: KeyScope::ALL.into_iter().filter(|scope| sender.permits(&[*scope])).map(KeyScope::as_str).collect(),
    })
}
