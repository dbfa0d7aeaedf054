//! `model-boss providers`: requests to cloud providers, their cost, and the rest of today's limits.

use model_boss_client::Client;
use serde_json::Value;

use super::error::CliError;
use super::tables::{items, pretty, table, text};

/// The tables of providers and of spending, or the API's own JSON.
pub(crate) async fn providers(client: &Client, as_json: bool) -> Result<String, CliError> {
    let answer = client.get("/api/v1/providers").await?;
    if as_json {
        return Ok(pretty(&answer));
    }
    let rows = items(&answer, "providers").flat_map(|provider| {
        let name = text(&provider["name"]);
        let state = match provider["problem"].as_str() {
            Some(problem) => problem.to_owned(),
            None if provider["cloud"] == false => "ready, no cloud".to_owned(),
            None => "ready".to_owned(),
        };
        let whole = [name.clone(), "(all)".to_owned()];
        let used = items(provider, "models").filter(|model| model["today"]["requests"].as_u64() > Some(0));
        let own = used.map(|model| row([String::new(), text(&model["model"])], &model["today"], String::new()));
        std::iter::once(row(whole, &provider["today"], state)).chain(own.collect::<Vec<_>>())
    });
    let head = ["PROVIDER", "MODEL", "REQUESTS", "ERRORS", "TOKENS IN", "OUT", "TODAY", "STATE"];
    let mut shown = table(head, rows);
    let budgets: Vec<_> = items(&answer, "clients")
        .map(|client| {
            [
                text(&client["id"]),
                dollars(&client["spent_usd"]),
                dollars(&client["daily_limit_usd"]),
                dollars(&client["remaining_usd"]),
            ]
        })
        .collect();
    if !budgets.is_empty() {
        shown.push('\n');
        shown.push_str(&table(["CLIENT", "TODAY", "LIMIT", "LEFT"], budgets.into_iter()));
    }
    Ok(shown)
}

fn row([name, model]: [String; 2], today: &Value, state: String) -> [String; 8] {
    let number = |field: &str| text(&today[field]);
    [
        name,
        model,
        number("requests"),
        number("errors"),
        number("input_tokens"),
        number("output_tokens"),
        dollars(&today["spent_usd"]),
        state,
    ]
}

/// Dollars with fractions of cents, since most answers cost less than a cent.
fn dollars(value: &Value) -> String {
    match value.as_f64() {
        None => "-".to_owned(),
        Some(usd) if usd > 0.0 && usd < 0.1 => format!("${usd:.4}"),
        Some(usd) => format!("${usd:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{FakeCoordinator, ScriptedAnswer};

    #[tokio::test]
    async fn money_is_shown_by_provider_model_and_client() {
        let used =
            json!({ "requests": 3, "errors": 1, "input_tokens": 1000, "output_tokens": 500, "spent_usd": 0.0175 });
        let unused = json!({ "requests": 0, "errors": 0, "input_tokens": 0, "output_tokens": 0, "spent_usd": 0.0 });
        let answer = json!({
            "providers": [
                { "name": "claude", "cloud": true, "problem": null, "today": used, "models": [
                    { "model": "claude-opus-x", "today": used }, { "model": "claude-haiku-x", "today": unused } ] },
                { "name": "far", "cloud": true, "problem": "provider 'far' has no key: set K", "today": unused, "models": [] },
            ],
            "clients": [
                { "id": "poor", "spent_usd": 0.0175, "daily_limit_usd": 1.0, "remaining_usd": 0.9825 },
                { "id": "rich", "spent_usd": 12.0, "daily_limit_usd": null, "remaining_usd": null },
            ],
        });
        let fake = FakeCoordinator::answering(vec![ScriptedAnswer::json(200, &answer)]).await.unwrap();
        let shown = providers(&Client::new(&fake.url, None).unwrap(), false).await.unwrap();
        let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["claude", "(all)", "3", "1", "1000", "500", "$0.0175", "ready"], "{shown}");
        assert_eq!(lines[2], ["claude-opus-x", "3", "1", "1000", "500", "$0.0175"], "{shown}");
        assert!(lines[3].join(" ").ends_with("$0.00 provider 'far' has no key: set K"), "{shown}");
        assert_eq!(lines[6], ["poor", "$0.0175", "$1.00", "$0.98"], "{shown}");
        assert_eq!(lines[7], ["rich", "$12.00", "-", "-"], "{shown}");
    }
}
