//! `GET /api/v1/providers`: the cloud providers, their requests and cost, and the spending and limits of clients.

use std::collections::BTreeSet;

use axum::response::Response;
use model_boss_cloud::{ProviderReport, Today, UTC_DAY};
use model_boss_host::clocks::unix_seconds;
use model_boss_http::body::json;
use model_boss_protocol::{ApiError, ClientId};
use schemars::JsonSchema;
use serde::Serialize;

use crate::api::context::Context;
use crate::api::route::Call;

/// All providers, and the clients that spent money today or have a limit.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ProvidersAnswer {
    providers: Vec<ProviderReport>,
    clients: Vec<ClientBudget>,
    /// The common spending of all clients beyond those that are counted separately.
    other_clients_spent_usd: f64,
    /// The end of the day for which limits count, in seconds since 1970.
    day_ends: u64,
}

/// A client's spending today, and its limit.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct ClientBudget {
    pub(super) id: String,
    pub(super) spent_usd: f64,
    /// The limit in US dollars; `None` for no limit.
    pub(super) daily_limit_usd: Option<f64>,
    remaining_usd: Option<f64>,
    /// Whether the client has a limit of its own in `tasks.yaml`.
    #[serde(skip)]
    pub(super) is_profile: bool,
}

/// All providers, and the clients that spent money today or have a limit.
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let (providers, today) = call.context.clouds.report(unix_seconds());
    let clients = budgets(&call.context, &today);
    let other_clients_spent_usd = today.others_spent;
    json(&ProvidersAnswer { providers, clients, other_clients_spent_usd, day_ends: (today.day + 1) * UTC_DAY })
}

/// The clients that spent money today, and those with a limit of their own.
pub(crate) fn budgets(context: &Context, today: &Today) -> Vec<ClientBudget> {
    let current = context.tasks.current();
    let file = current.names.file();
    let limited = file.clients.iter().filter(|(_, profile)| profile.daily_spend_usd.is_some());
    let limited: BTreeSet<&String> = limited.map(|(name, _)| name).collect();
    let all: BTreeSet<&String> = limited.iter().copied().chain(today.spent.keys()).collect();
    let budget = |id: &String| {
        let limit = file.profile(&ClientId::from(id.as_str())).daily_spend_usd;
        let spent = today.spent_by(id);
        ClientBudget {
            id: id.clone(),
            spent_usd: spent,
            daily_limit_usd: limit,
            remaining_usd: limit.map(|limit| (limit - spent).max(0.0)),
            is_profile: limited.contains(id),
        }
    };
    all.into_iter().map(budget).collect()
}
