//! OP-3: the metrics as a real Prometheus and Grafana's dashboard see them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use model_boss_tests::{Behaviour, Boss, PATIENCE, Prometheus, Sandbox, binary, promtool, question, until};
use serde_json::{Value, json};

use crate::cloud::{KEY, Stub, message};
use crate::views;

/// The variables of the dashboard, as Grafana would replace them.
const VARIABLES: [(&str, &str); 5] = [
    ("$__rate_interval", "1m"),
    ("$job", ".*"),
    ("$instance", ".*"),
    ("$model", ".*"),
    ("${datasource}", "prometheus"),
];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/grafana").join(name)
}

fn dashboard() -> Value {
    serde_json::from_str(&std::fs::read_to_string(file("model-boss.json")).unwrap()).unwrap()
}

/// The expressions of all panels, with their titles.
fn expressions(dashboard: &Value) -> Vec<(String, String)> {
    let panels = dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row");
    let targets = panels.flat_map(|panel| {
        let title = panel["title"].as_str().unwrap().to_owned();
        let targets = panel["targets"].as_array().unwrap();
        targets.iter().map(move |target| (title.clone(), target["expr"].as_str().unwrap().to_owned()))
    });
    targets.collect()
}

fn with_values(text: &str) -> String {
    VARIABLES.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
}

/// The names of this project's metrics in an expression.
fn names(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    words.filter(|word| word.starts_with("model_boss_") || word.contains("vllm:")).map(str::to_owned).collect()
}

/// A coordinator of which every part has been used: models here and elsewhere, errors, traces, a client with a limit.
async fn used(sandbox: &Sandbox) -> Boss {
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    launch.command.env("ANTHROPIC_API_KEY", KEY);
    // Port 1 is reserved, so no collector listens there.
    launch.command.args(["--otlp-endpoint", "http://127.0.0.1:1"]).env("OTEL_BSP_SCHEDULE_DELAY", "20");
    let boss = launch.start().await;
    for model in ["alpha", "beta", "claude:opus"] {
        let mut body = question(model, "?");
        body["x_client_id"] = "poor".into();
        assert!(boss.ask(body).await.unwrap().status.is_success(), "{model}");
        assert_eq!(boss.chat("no-such-model", "?").await.status.as_u16(), 404);
    }
    boss
}

async fn sandbox() -> (Sandbox, Stub) {
    let stub = Stub::start("application/json", message("four")).await;
    let claude = format!(
        "[providers.claude]\nbase_url = \"http://{}\"\nkey_env = \"ANTHROPIC_API_KEY\"\n\
         models = {{ opus = \"claude-opus-x\" }}\nprices = {{ claude-opus = {{ input = 5, output = 25 }} }}",
        stub.address
    );
    let sandbox = Sandbox::new().with_config(&claude);
    std::fs::write(sandbox.path("tasks.yaml"), "clients:\n  poor:\n    daily_spend_usd: 10\n").unwrap();
    for name in ["alpha", "beta"] {
        drop(sandbox.fake_model(name, Behaviour { reply: Some("one two".to_owned()), ..Behaviour::default() }));
    }
    let holding = Behaviour { reply: Some("one two".to_owned()), hold_after_tokens: Some(1), ..Behaviour::default() };
    drop(sandbox.fake_model_with("gamma", "max_concurrent = 1", holding));
    (sandbox, stub)
}

#[tokio::test]
async fn op_3_prometheus_evaluates_the_dashboard_and_the_alerts() {
    let (sandbox, _stub) = sandbox().await;
    let boss = used(&sandbox).await;
    // Some figures are there only while a request waits.
    let mut first = boss.chat_streamed("gamma", "?").await;
    first.token().await;
    let waiting = boss.ask(question("gamma", "?"));
    views::waiting(&boss, 1).await;
    let target = boss.client().address().to_string();
    let Some(prometheus) = Prometheus::start(&target, &file("alerts.yml")).await else {
        drop(first);
        waiting.abort();
        boss.finish().await;
        return;
    };
    // A rate needs two samples.
    let scraped = async || {
        let result = prometheus.query("count_over_time(model_boss_build_info[1m])").await.unwrap();
        result.first()?["value"][1].as_str()?.parse::<f64>().ok().filter(|count| *count >= 2.0)
    };
    until(PATIENCE, "prometheus scrapes the coordinator", scraped).await;

    let mut used = BTreeSet::new();
    for (title, expression) in expressions(&dashboard()) {
        let result = prometheus.query(&with_values(&expression)).await;
        assert!(result.is_ok(), "{title}: {expression}: {result:?}");
        used.append(&mut names(&expression));
    }
    let evaluated = async || {
        let rules = prometheus.rules().await;
        rules.iter().all(|rule| rule["health"] != "unknown").then_some(rules)
    };
    let rules = until(PATIENCE, "the rules are evaluated", evaluated).await;
    assert!(rules.len() > 8);
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        used.append(&mut names(rule["query"].as_str().unwrap()));
    }
    let dropped = prometheus.query("model_boss_trace_spans_dropped_total > 0").await.unwrap();
    assert_eq!(dropped.len(), 1, "spans are dropped and counted: {dropped:?}");
    for name in used {
        let found = prometheus.query(&format!("count({name})")).await.unwrap();
        assert!(!found.is_empty(), "the coordinator has no metric {name}");
    }
    drop((prometheus, first));
    waiting.abort();
    boss.finish().await;
}

#[tokio::test]
async fn op_3_promtool_finds_nothing_wrong_with_the_metrics() {
    let (sandbox, _stub) = sandbox().await;
    let boss = used(&sandbox).await;
    let own = boss.client().get("/metrics?names=model_boss").await;
    let own = String::from_utf8(own.body.to_vec()).unwrap();
    let all = boss.client().get("/metrics").await;
    let all = String::from_utf8(all.body.to_vec()).unwrap();
    let wrong = boss.client().get("/metrics?names=vllm,others").await;
    assert_eq!(wrong.status.as_u16(), 400);
    assert!(wrong.error_message().contains("'others'") && wrong.error_message().contains("llamacpp"), "{wrong:?}");
    boss.finish().await;
    assert!(!own.contains("vllm:") && all.contains("vllm:num_requests_running{") && all.contains("llamacpp:"));
    let Some(checked) = promtool(&["check", "metrics"], &own) else { return };
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    // Of the names of others, only their colons are against Prometheus' customs.
    let checked = promtool(&["check", "metrics"], &all).unwrap();
    let said = [checked.stdout, checked.stderr].concat();
    for line in String::from_utf8_lossy(&said).lines() {
        assert!(line.contains("should not contain ':'"), "{line}");
    }
}

/// The fields that Grafana needs, and those whose faults it shows only as an empty panel.
#[test]
fn op_3_the_dashboard_has_what_grafana_needs() {
    let dashboard = dashboard();
    for field in ["title", "uid"] {
        assert!(dashboard[field].as_str().is_some_and(|text| (1..=40).contains(&text.len())), "{field}");
    }
    assert!(dashboard["schemaVersion"].as_u64().is_some_and(|version| version >= 36));
    assert!(dashboard["id"].is_null(), "an imported dashboard gets its number there");
    let variables: BTreeSet<String> = dashboard["templating"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .map(|variable| {
            assert!(matches!(variable["type"].as_str(), Some("query" | "datasource")), "{variable}");
            variable["name"].as_str().unwrap().to_owned()
        })
        .collect();
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        assert!(panel["title"].as_str().is_some_and(|title| !title.is_empty()), "{panel}");
        let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        let (x, y, w, h) = (place("x"), place("y"), place("w"), place("h"));
        assert!(x + w <= 24 && w > 0 && h > 0, "{panel}");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(cells.insert(cell), "two panels lie on {cell:?}: {panel}");
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(matches!(panel["type"].as_str(), Some("timeseries" | "stat")), "{panel}");
        let source = json!({ "type": "prometheus", "uid": "${datasource}" });
        assert_eq!(panel["datasource"], source);
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string() && panel["options"].is_object(), "{panel}");
        let mut references = BTreeSet::new();
        for target in panel["targets"].as_array().unwrap() {
            assert!(references.insert(target["refId"].as_str().unwrap().to_owned()), "{panel}");
            assert_eq!(target["datasource"], source);
            let expression = target["expr"].as_str().unwrap();
            for used in expression.split('$').skip(1) {
                let name: String = used.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                assert!(name == "__rate_interval" || variables.contains(&name), "{name} in {expression}");
            }
        }
        assert!(!references.is_empty(), "{panel}");
    }
}
