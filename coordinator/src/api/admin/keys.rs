//! `GET /api/v1/keys`: clients with keys, their scopes and limits, and what they used today. Keys themselves are known
//! to nobody.

use axum::response::Response;
use model_boss_access::{KeyLimits, KeyRecord};
use model_boss_host::clocks::unix_seconds;
use model_boss_http::body::json as answer;
use model_boss_protocol::{ApiError, ClientId};
use schemars::JsonSchema;
use serde::Serialize;

use crate::api::route::Call;

/// The clients with keys.
#[derive(Serialize, JsonSchema)]
pub(crate) struct KeysAnswer {
    /// Whether requests need a key.
    needed: bool,
    clients: Vec<KeyClientObject>,
    /// The number of keys without a name, which permit everything.
    without_a_name: usize,
    /// The fault of the file's present version, which is then not in use.
    problem: Option<String>,
}

/// A client with a key.
#[derive(Serialize, JsonSchema)]
struct KeyClientObject {
    name: ClientId,
    scopes: Vec<&'static str>,
    limits: KeyLimitsObject,
    /// The keys that are valid.
    keys: Vec<ValidKey>,
    /// Tokens of prompts and answers in this day of UTC; 0 without a limit.
    tokens_today: u64,
    /// Dollars at cloud providers in this day of UTC.
    spent_today_usd: f64,
}

/// The limits of a key, which hold beside those of the client's profile.
#[derive(Serialize, JsonSchema)]
struct KeyLimitsObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_models: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    daily_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    daily_spend_usd: Option<f64>,
}

/// A key that is valid, by its times in seconds since 1970.
#[derive(Serialize, JsonSchema)]
struct ValidKey {
    created: u64,
    /// The time from which it is of no use; `null` is never.
    expires: Option<u64>,
}

/// Every client with a key.
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let context = call.context;
    let (current, now) = (context.keys.current(), unix_seconds());
    let (_, today) = context.clouds.report(now);
    let client = |record: &KeyRecord| {
        let valid = record.secrets.iter().filter(|secret| secret.is_valid(now));
        let KeyLimits { allowed_models, daily_tokens, daily_spend_usd } = record.limits.clone();
        KeyClientObject {
            name: record.name.clone(),
            scopes: record.scopes.iter().map(|scope| scope.as_str()).collect(),
            limits: KeyLimitsObject { allowed_models, daily_tokens, daily_spend_usd },
            keys: valid.map(|key| ValidKey { created: key.created, expires: key.expires }).collect(),
            tokens_today: context.clouds.tokens_today(&record.name, now),
            spent_today_usd: today.spent_by(record.name.as_str()),
        }
    };
    answer(&KeysAnswer {
        needed: current.needed,
        clients: current.set.records().iter().map(|record| client(record)).collect(),
        without_a_name: current.set.unnamed(),
        problem: current.problem.clone(),
    })
}
