//! `GET /api/v1/keys`: clients with keys, their scopes and limits, and what they used today. Keys themselves are known
//! to nobody.

use axum::response::Response;
use model_boss_host::clocks::unix_seconds;
use model_boss_http::body::json as answer;
use model_boss_protocol::ApiError;
use serde_json::{Value, json};

use crate::api::route::Call;

/// Every client with a key.
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let context = call.context;
    let (current, now) = (context.keys.current(), unix_seconds());
    let (_, today) = context.clouds.report(now);
    let keys = current.set.records().iter().map(|record| {
        let valid: Vec<Value> = record
            .secrets
            .iter()
            .filter(|secret| secret.is_valid(now))
            .map(|secret| json!({ "created": secret.created, "expires": secret.expires }))
            .collect();
        json!({
            "name": record.name,
            "scopes": record.scopes,
            "limits": record.limits,
            "keys": valid,
            "tokens_today": context.clouds.tokens_today(&record.name, now),
            "spent_today_usd": today.spent_by(record.name.as_str()),
        })
    });
    answer(&json!({
        "needed": current.needed,
        "clients": keys.collect::<Vec<_>>(),
        "without_a_name": current.set.unnamed(),
        "problem": current.problem,
    }))
}
