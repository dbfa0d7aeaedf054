//! The queue, clients, devices, decisions and plans, as human-readable tables or as the API's own JSON.

use std::time::Duration;

use model_boss_client::Client;
use model_boss_host::clocks::unix_time;
use model_boss_protocol::SandboxState;
use serde_json::{Value, json};

use super::error::CliError;
use super::tables::{bytes, items, pretty, table, text};

/// `model-boss queue`.
pub(super) async fn queue(client: &Client, as_json: bool) -> Result<String, CliError> {
    let answer = client.get("/api/v1/queue").await?;
    if as_json {
        return Ok(pretty(&answer));
    }
    let rows = items(&answer, "queue").map(|entry| {
        [
            text(&entry["position"]),
            text(&entry["model"]),
            priority(entry),
            text(&entry["client"]),
            millis(&entry["waited_ms"]),
            text(&entry["message"]),
        ]
    });
    let mut shown = or_nothing(table(["PLACE", "MODEL", "PRIORITY", "CLIENT", "WAITED", "FOR"], rows), "nothing waits");
    let behind = answer["total"].as_u64().unwrap_or(0).saturating_sub(items(&answer, "queue").count() as u64);
    if behind > 0 {
        shown.push_str(&format!("and {behind} more\n"));
    }
    Ok(shown)
}

/// `model-boss clients`.
pub(super) async fn clients(client: &Client, as_json: bool) -> Result<String, CliError> {
    let answer = client.get("/api/v1/clients").await?;
    if as_json {
        return Ok(pretty(&answer));
    }
    let now = unix_time();
    let rows = items(&answer, "clients").map(|entry| {
        let seen = entry["last_seen"].as_f64().map_or_else(|| "-".to_owned(), |at| format!("{} ago", span(now - at)));
        let held = &entry["held_back"];
        [
            text(&entry["id"]),
            text(&entry["kind"]),
            text(&entry["running"]),
            text(&entry["queued"]),
            text(&entry["requests"]),
            text(&entry["refused"]),
            text(&entry["tokens"]),
            entry["requests_per_minute"].as_f64().map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}")),
            seen,
            if held.is_null() { "-".to_owned() } else { text(&held["reason"]) },
        ]
    });
    let head = ["CLIENT", "KIND", "RUNNING", "QUEUED", "REQUESTS", "REFUSED", "TOKENS", "PER MIN", "SEEN", "HELD BACK"];
    let mut shown = or_nothing(table(head, rows), "nobody has asked yet");
    shown.push('\n');
    let rows = items(&answer, "profiles").map(profile);
    let head =
        ["PROFILE", "PRIORITY", "AT MOST", "AT ONCE", "WAITING", "PER MIN", "PAUSE", "MODELS", "ITS NAMES", "CLOUDS"];
    shown.push_str(&table(head, rows));
    shown.push_str("* by its own entry in tasks.yaml, + by everybody's or by model-boss.toml\n");
    Ok(shown)
}

/// The limits of a client. A mark shows where an operator set a limit: `*` in the client's own entry; `+` in the entry
/// for all clients, or in the configuration.
fn profile(entry: &Value) -> [String; 10] {
    let told = |key: &str, words: &dyn Fn(&Value) -> String| {
        let setting = &entry["profile"][key];
        let origin = setting["origin"].as_str().unwrap_or_default();
        let mark = match origin.strip_prefix("tasks.yaml: clients.") {
            Some(name) if entry["id"] == name => "*",
            None if origin == "default" => "",
            _ => "+",
        };
        let value = &setting["value"];
        format!("{}{mark}", if value.is_null() { "-".to_owned() } else { words(value) })
    };
    let names = |value: &Value| match value {
        Value::Array(names) => names.iter().map(text).collect::<Vec<_>>().join(", "),
        Value::Object(map) if map.is_empty() => "-".to_owned(),
        Value::Object(map) => {
            map.iter().map(|(asked, given)| format!("{asked}={}", text(given))).collect::<Vec<_>>().join(", ")
        }
        other => text(other),
    };
    let clouds = |value: &Value| {
        let usd = &entry["profile"]["daily_spend_usd"]["value"];
        match (value.as_bool(), usd.as_f64()) {
            (Some(false), _) => "no".to_owned(),
            (_, Some(usd)) => format!("${usd} a day"),
            _ => "yes".to_owned(),
        }
    };
    let pause = |value: &Value| match value.as_f64() {
        Some(seconds) if seconds > 0.0 => format!("{seconds} s"),
        _ => "-".to_owned(),
    };
    [
        text(&entry["id"]),
        told("default_priority", &text),
        told("max_priority", &text),
        told("max_concurrent", &text),
        told("max_queued", &text),
        told("rate_per_minute", &text),
        told("cooldown_s", &pause),
        told("allowed_models", &names),
        told("models", &names),
        told("cloud", &clouds),
    ]
}

/// `model-boss devices`.
pub(super) async fn devices(client: &Client, as_json: bool) -> Result<String, CliError> {
    let answer = client.get("/api/v1/devices").await?;
    if as_json {
        return Ok(pretty(&answer));
    }
    let rows = items(&answer, "devices").map(|device| {
        let models: Vec<String> = items(device, "models").map(text).collect();
        let mut state = match device["available"].as_bool() {
            Some(false) => "does not answer".to_owned(),
            _ if device["closed"] == true => "closed".to_owned(),
            _ => "open".to_owned(),
        };
        if device["leaking"].as_u64().is_some_and(|leaking| leaking > 0) {
            state.push_str(&format!(", leaking {}", bytes(&device["leaking"])));
        }
        let sandbox: Option<SandboxState> = serde_json::from_value(device["sandbox"].clone()).ok();
        [
            text(&device["id"]),
            match (device["name"].as_str(), device["cpu_features"].as_str()) {
                (Some(name), Some(set)) => format!("{name}, {set}"),
                (name, set) => name.or(set).unwrap_or("-").to_owned(),
            },
            bytes(&device["total"]),
            bytes(&device["used"]),
            bytes(&device["foreign"]),
            bytes(&device["charged"]),
            bytes(&device["free"]),
            state,
            sandbox.map_or_else(|| "-".to_owned(), |sandbox| sandbox.to_string()),
            if models.is_empty() { "-".to_owned() } else { models.join(", ") },
        ]
    });
    let head = ["DEVICE", "NAME", "TOTAL", "USED", "OTHERS", "MODELS'", "FREE", "STATE", "SANDBOX", "MODELS"];
    Ok(table(head, rows))
}

/// `model-boss decisions`: the last `count`, oldest first.
pub(super) async fn decisions(client: &Client, count: usize, as_json: bool) -> Result<String, CliError> {
    let mut answer = client.get("/api/v1/decisions").await?;
    if let Some(all) = answer["decisions"].as_array_mut() {
        all.drain(..all.len().saturating_sub(count));
    }
    if as_json {
        return Ok(pretty(&answer));
    }
    let now = unix_time();
    let rows = items(&answer, "decisions").map(|decision| {
        let reasons: Vec<String> = items(decision, "reasons").map(text).collect();
        let request = &decision["request"];
        [
            decision["at"].as_f64().map_or_else(|| "-".to_owned(), |at| format!("{} ago", span(now - at))),
            text(&decision["what"]),
            text(&decision["model"]),
            if request.is_null() { "-".to_owned() } else { text(request) },
            reasons.join("; "),
        ]
    });
    Ok(or_nothing(table(["WHEN", "WHAT", "MODEL", "REQUEST", "WHY"], rows), "nothing was decided yet"))
}

/// `model-boss plan MODEL`.
pub(super) async fn plan(client: &Client, question: &Value, as_json: bool) -> Result<String, CliError> {
    let answer = client.post("/api/v1/plan", question).await?;
    if as_json {
        return Ok(pretty(&answer));
    }
    let mut lines = vec![format!("{}: {}", text(&answer["model"]), text(&answer["message"]))];
    for rung in items(&answer, "ladder") {
        let chosen = if rung["rung"] == answer["rung"] {
            format!(" <- {}", text(&answer["rung_reason"]))
        } else {
            String::new()
        };
        lines.push(format!(
            "  rung {:<5} {}: {}{chosen}",
            text(&rung["rung"]),
            text(&rung["model"]),
            text(&rung["state"])
        ));
    }
    if answer["step"] == "elsewhere" {
        return Ok(lines.join("\n") + "\n");
    }
    lines.push(format!("  needs      {} (size by rule '{}')", bytes(&answer["size"]), text(&answer["size_rule"])));
    let parts: Vec<String> =
        items(&answer, "parts").map(|part| format!("{} on {}", bytes(&part[1]), text(&part[0]))).collect();
    if !parts.is_empty() {
        lines.push(format!("  where      {}", parts.join(", ")));
    }
    let layers = &answer["layers"];
    if layers["streamed"] == true {
        let why = layers["why"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
        lines.push(format!("  layers     come and go{why}"));
    }
    for victim in items(&answer, "evictions") {
        let how = if victim["drains"] == true { "drains" } else { "evicts" };
        lines.push(format!("  {how:<10} {}: {}", text(&victim["model"]), text(&victim["why"])));
    }
    match answer["before_it"].as_u64() {
        None | Some(0) => {}
        Some(before) => lines.push(format!("  after      {before} requests that wait for it already")),
    }
    for (name, what) in [("load", "expected_load_s"), ("answer", "expected_answer_s")] {
        if let Some(seconds) = answer[what].as_f64() {
            lines.push(format!("  {name:<10} about {}", span(seconds)));
        }
    }
    Ok(lines.join("\n") + "\n")
}

/// The body of a `plan` request with the given options.
pub(super) fn plan_question(model: &str, context: Option<u64>, priority: Option<&str>, device: Option<&str>) -> Value {
    let mut question = json!({ "model": model });
    let mut give = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            question[name] = value;
        }
    };
    give("ctx_size", context.map(Value::from));
    give("priority", priority.map(number_or_word));
    give("device", device.map(Value::from));
    question
}

/// A priority as the API accepts it: a number, or a word.
pub(super) fn number_or_word(text: &str) -> Value {
    text.parse::<u64>().map_or_else(|_| Value::from(text), Value::from)
}

/// The priority in words: `5`, or `5 (3 now)` after aging.
fn priority(entry: &Value) -> String {
    let (own, now) = (text(&entry["priority"]), text(&entry["effective_priority"]));
    if own == now { own } else { format!("{own} ({now} now)") }
}

fn or_nothing(table: String, nothing: &str) -> String {
    if table.lines().count() > 1 { table } else { format!("{nothing}\n") }
}

fn millis(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_owned(), |ms| span(Duration::from_millis(ms).as_secs_f64()))
}

/// A span in words: `0.4s`, `12s`, `3m 20s`, `2h 5m`.
fn span(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    let whole = seconds.round() as u64;
    match (whole / 3_600, whole / 60 % 60, whole % 60) {
        _ if seconds < 9.95 => format!("{seconds:.1}s"),
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m {seconds}s"),
        (hours, minutes, _) => format!("{hours}h {minutes}m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeCoordinator, ScriptedAnswer};

    async fn fake(answer: Value) -> (FakeCoordinator, Client) {
        let fake = FakeCoordinator::answering(vec![ScriptedAnswer::json(200, &answer)]).await.unwrap();
        let client = Client::new(&fake.url, None).unwrap();
        (fake, client)
    }

    #[test]
    fn spans_are_said_for_people() {
        for (seconds, said) in [(0.04, "0.0s"), (2.34, "2.3s"), (59.0, "59s"), (200.0, "3m 20s"), (7_500.0, "2h 5m")] {
            assert_eq!(span(seconds), said);
        }
    }

    #[tokio::test]
    async fn the_queue_says_who_waits_for_what() {
        let entry = json!({ "position": 1, "model": "alpha", "priority": 5, "effective_priority": 3, "client": "me",
            "waited_ms": 1_500, "message": "alpha works on 1 of 1 requests" });
        let (_fake, client) = fake(json!({ "queue": [entry] })).await;
        let shown = queue(&client, false).await.unwrap();
        assert!(shown.contains("5 (3 now)") && shown.contains("1.5s") && shown.contains("works on"), "{shown}");
        let (_fake, client) = fake(json!({ "queue": [{ "position": 1 }], "total": 1_200 })).await;
        assert!(queue(&client, false).await.unwrap().ends_with("\nand 1199 more\n"));
        let (_fake, client) = fake(json!({ "queue": [] })).await;
        assert_eq!(queue(&client, false).await.unwrap(), "nothing waits\n");
    }

    #[tokio::test]
    async fn an_unknown_size_is_no_zero() {
        let device = json!({ "id": "cuda:0", "name": "x", "available": false, "total": 1024, "used": null,
            "foreign": null, "charged": 0, "free": null, "closed": false, "models": ["a", "b"] });
        let (_fake, client) = fake(json!({ "devices": [device] })).await;
        let shown = devices(&client, false).await.unwrap();
        assert!(shown.contains("does not answer") && shown.contains("a, b"), "{shown}");
        assert_eq!(shown.lines().nth(1).unwrap().matches(" -").count(), 4, "{shown}");
        let cpu = json!({ "id": "cpu", "name": "EPYC", "cpu_features": "avx2", "available": true, "models": [],
            "sandbox": { "landlock": 7, "seccomp": true } });
        let (_fake, client) = fake(json!({ "devices": [cpu] })).await;
        let shown = devices(&client, false).await.unwrap();
        assert!(shown.contains("EPYC, avx2") && shown.contains("Landlock ABI 7, seccomp"), "{shown}");
    }

    #[tokio::test]
    async fn the_last_decisions_are_shown() {
        let decision = |seq: u64| {
            json!({ "seq": seq, "at": 0.0, "what": "evict", "model": format!("m{seq}"),
            "request": null, "reasons": ["room for 'x'", "idle"] })
        };
        let (_fake, client) = fake(json!({ "decisions": [decision(1), decision(2), decision(3)] })).await;
        let shown = decisions(&client, 2, false).await.unwrap();
        assert!(!shown.contains("m1") && shown.contains("m2") && shown.contains("room for 'x'; idle"), "{shown}");
    }

    #[tokio::test]
    async fn a_plan_says_who_would_leave_and_by_which_right() {
        let answer = json!({ "model": "large", "priority": 2, "size": 6_442_450_944_u64, "size_rule": "manifest", "step": "evict",
            "parts": [["cuda:0", 6_442_450_944_u64]],
            "layers": { "streamed": true, "why": "all layers take 9.00 GiB, and models can have 6.00 GiB of cuda:0" },
            "evictions": [{ "model": "small", "drains": true, "why": "its rank is 5" }],
            "message": "loaded when small has left", "before_it": 3, "expected_load_s": 12.0, "expected_answer_s": null });
        let (_fake, client) = fake(answer).await;
        let shown = plan(&client, &plan_question("large", None, None, None), false).await.unwrap();
        for part in [
            "6.00 GiB on cuda:0",
            "layers     come and go: all layers take 9.00 GiB",
            "drains     small: its rank is 5",
            "after      3 requests",
            "load       about 12",
        ] {
            assert!(shown.contains(part), "{shown}");
        }
        assert!(!shown.contains("\n  answer"), "{shown}");
    }

    #[test]
    fn a_plan_asks_for_what_was_given() {
        assert_eq!(plan_question("m", None, None, None), json!({ "model": "m" }));
        let asked = plan_question("m", Some(8), Some("2"), Some("cuda:1"));
        assert_eq!(asked, json!({ "model": "m", "ctx_size": 8, "priority": 2, "device": "cuda:1" }));
        assert_eq!(plan_question("m", None, Some("batch"), None)["priority"], "batch");
    }
}
