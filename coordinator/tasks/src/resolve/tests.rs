//! Meanings of names, permissions of clients, and the truth table of the rule about clouds.

use super::*;
use crate::TasksFile;

const FILE: &str = r#"
tasks:
  chat:
    ladder: [big, small, claude:haiku, lan:llama]
    priority: interactive
    budget_s: 30
    keep_alive_s: 10m
    params: {temperature: 0.2}
  away: {ladder: [claude:opus, small, claude:haiku]}
  here: {ladder: [big, lan:llama], local_only: true}
  styled: {ladder: ["big:style", big, small]}
  strict: {ladder: [big, small], fallback: none, pin_primary: true, patience_s: 1.5}
clients:
  phone:
    models: {gpt-4o: "task:chat", "*": small}
  guest:
    allowed_models: ["task:strict", small, "lan:*"]
  inside:
    cloud: false
defaults:
  budget_s: 60
"#;

fn providers() -> Providers {
    Providers::new().with("lan", false).with("together", true)
}

struct Ask<'a> {
    model: Option<&'a str>,
    task: Option<&'a str>,
    client: &'a str,
    no_fallback: bool,
    fallback: CloudFallback,
}

const PLAIN: Ask<'static> =
    Ask { model: None, task: None, client: "c", no_fallback: false, fallback: CloudFallback::Allowed };

fn ask(ask: &Ask<'_>) -> Result<Resolved, Denial> {
    let names = TaskNames::new(TasksFile::read(FILE, &providers()).unwrap());
    let model_named = |name: &str| match name {
        "big" | "small" => Some(ModelId::from(name)),
        "little" => Some(ModelId::from("small")),
        _ => None,
    };
    let adapter_named = |name: &str| match name.split_once(':') {
        Some(("big" | "large", "style")) => {
            AdapterName::Known { model: ModelId::from("big"), adapter: "style".to_owned() }
        }
        Some(("big", other)) => AdapterName::Unknown {
            model: ModelId::from("big"),
            adapter: other.to_owned(),
            known: vec!["style".to_owned()],
        },
        _ => AdapterName::Other,
    };
    let around = Surroundings {
        names: &names,
        providers: &providers(),
        cloud_fallback: ask.fallback,
        model_named: &model_named,
        adapter_named: &adapter_named,
    };
    let client = ClientId::from(ask.client);
    let question = NameQuestion { model: ask.model, task: ask.task, client: &client, no_fallback: ask.no_fallback };
    resolve(&question, &around)
}

#[test]
fn en_9_names_of_adapters_lead_to_their_model() {
    let resolved = ask(&Ask { model: Some("big:style"), ..PLAIN }).unwrap();
    assert_eq!((rungs(&resolved), resolved.name.as_str()), (vec!["0 big".to_owned()], "big:style"));
    assert_eq!(resolved.adapters, BTreeMap::from([(0, "style".to_owned())]));
    let unknown = ask(&Ask { model: Some("big:other"), ..PLAIN }).unwrap_err();
    assert_eq!(unknown.to_string(), "model 'big' has no adapter 'other'; it has: style");
    // Names of models, providers and tags go on to mean what they meant.
    assert_eq!(ladder(&Ask { model: Some("claude:opus"), ..PLAIN }), ["0 claude:opus"]);
    assert_eq!(ladder(&Ask { model: Some("small:latest"), ..PLAIN }), ["0 small"]);
    assert_eq!(ladder(&Ask { model: Some("nobody:8b"), ..PLAIN }), ["0 nobody:8b"]);
    assert!(ask(&Ask { model: Some("big"), ..PLAIN }).unwrap().adapters.is_empty());
    // A client that may use other models may not use the adapter.
    let refused = ask(&Ask { model: Some("big:style"), client: "guest", ..PLAIN });
    assert_eq!(refused.unwrap_err(), Denial::ModelNotAllowed("big:style".to_owned()));
    // A task's rungs may have adapters.
    let resolved = ask(&Ask { task: Some("styled"), ..PLAIN }).unwrap();
    assert_eq!(
        (rungs(&resolved), resolved.adapters),
        (vec!["0 big".to_owned(), "1 big".to_owned(), "2 small".to_owned()], BTreeMap::from([(0, "style".to_owned())]),)
    );
}

/// The rungs as `position:target`.
fn rungs(resolved: &Resolved) -> Vec<String> {
    resolved.ladder().rungs().map(|rung| format!("{} {}", rung.position, rung.target)).collect()
}

fn ladder(of: &Ask<'_>) -> Vec<String> {
    rungs(&ask(of).unwrap())
}

#[test]
fn tr_1_a_task_by_model_or_by_field_and_what_it_says() {
    for named in [
        Ask { model: Some("task:chat"), ..PLAIN },
        Ask { task: Some("chat"), ..PLAIN },
        Ask { task: Some("task:chat"), ..PLAIN },
    ] {
        let resolved = ask(&named).unwrap();
        assert_eq!(rungs(&resolved), ["0 big", "1 small", "2 claude:haiku", "3 lan:llama"]);
        assert_eq!((resolved.name.as_str(), resolved.priority), ("task:chat", Some(Priority::INTERACTIVE)));
        assert_eq!(resolved.budget, Some(Duration::from_secs(30)));
        assert_eq!(resolved.keep_alive, Some(KeepAlive::For(Duration::from_secs(600))));
        assert_eq!(resolved.params().unwrap()["temperature"], 0.2);
    }
    let strict = ask(&Ask { task: Some("strict"), ..PLAIN }).unwrap();
    assert_eq!(strict.budget, Some(Duration::from_secs(60)), "from the defaults");
    assert!(strict.ladder().pin_primary);
    assert_eq!(strict.ladder().patience, Duration::from_millis(1_500));
}

#[test]
fn plain_names_aliases_providers_and_nothing_at_all() {
    assert_eq!(ladder(&Ask { model: Some("big"), ..PLAIN }), ["0 big"]);
    assert_eq!(ladder(&Ask { model: Some("little"), ..PLAIN }), ["0 small"]);
    assert_eq!(ladder(&Ask { model: Some("claude:opus"), ..PLAIN }), ["0 claude:opus"]);
    // The scheduler finds similar names.
    assert_eq!(ladder(&Ask { model: Some("bgi"), ..PLAIN }), ["0 bgi"]);
    assert_eq!(ladder(&PLAIN), ["0 default"]);
    assert!(ask(&Ask { model: Some("big"), ..PLAIN }).unwrap().budget.is_none(), "defaults are for tasks");
}

#[test]
fn a_task_that_is_not_there_is_told_with_one_that_is_like_it() {
    let error = ask(&Ask { task: Some("caht"), ..PLAIN }).unwrap_err();
    assert!(matches!(error, Denial::UnknownTask { .. }));
    assert!(error.to_string().contains("did you mean 'task:chat'?"), "{}", error.to_string());
    let guest = ask(&Ask { task: Some("caht"), client: "guest", ..PLAIN }).unwrap_err();
    assert!(!guest.to_string().contains("task:chat"), "{}", guest.to_string());
}

#[test]
fn rc_2_a_model_beside_a_task_is_a_wish_for_a_rung() {
    let with = |model| ladder(&Ask { task: Some("chat"), model: Some(model), ..PLAIN });
    assert_eq!(with("little"), ["1 small", "0 big", "2 claude:haiku", "3 lan:llama"]);
    assert_eq!(with("lan:llama"), ["3 lan:llama", "0 big", "1 small", "2 claude:haiku"]);
    assert_eq!(with("nobody"), ["0 big", "1 small", "2 claude:haiku", "3 lan:llama"]);
}

#[test]
fn tr_2_no_fallback_is_the_first_rung_or_none() {
    assert_eq!(ladder(&Ask { task: Some("chat"), no_fallback: true, ..PLAIN }), ["0 big"]);
    assert_eq!(ladder(&Ask { task: Some("chat"), model: Some("small"), no_fallback: true, ..PLAIN }), ["1 small"]);
    assert_eq!(ladder(&Ask { task: Some("strict"), ..PLAIN }), ["0 big"]);
}

#[test]
fn tr_3_the_truth_table_of_the_cloud_guard() {
    let rung = |position, name: &str| Rung { target: providers().target(name), position };
    // The name, its position, whether fallback to clouds is permitted, and whether the rung stays.
    for (name, position, allow, stays) in [
        ("small", 0, false, true),
        ("small", 0, true, true),
        ("small", 1, false, true),
        ("small", 1, true, true),
        ("lan:llama", 0, false, true),
        ("lan:llama", 0, true, true),
        ("lan:llama", 1, false, true),
        ("lan:llama", 1, true, true),
        ("claude:opus", 0, false, true),
        ("claude:opus", 0, true, true),
        ("claude:opus", 1, false, false),
        ("claude:opus", 1, true, true),
        ("claude:opus", 7, false, false),
        ("together:llama", 0, false, true),
        ("together:llama", 0, true, true),
        ("together:llama", 1, false, false),
        ("together:llama", 1, true, true),
    ] {
        let unknown = CloudFallback::Unknown("the store was not read");
        for fallback in if allow { vec![CloudFallback::Allowed] } else { vec![CloudFallback::Off, unknown] } {
            let (kept, fallen) = guarded(vec![rung(position, name)], &providers(), fallback);
            let counts = if stays { (1, 0) } else { (0, 1) };
            assert_eq!((kept.len(), fallen.len()), counts, "{name} at {position}, {fallback:?}");
            assert!(fallen.iter().all(|fallen| Some(fallen.why) == fallback.refusal()), "{fallen:?}");
        }
    }
}

#[test]
fn tr_3_tasks_and_direct_names_pass_the_same_guard_and_it_empties_no_ladder() {
    let shut = |task| ladder(&Ask { task: Some(task), fallback: CloudFallback::Off, ..PLAIN });
    assert_eq!(shut("chat"), ["0 big", "1 small", "3 lan:llama"]);
    assert_eq!(shut("away"), ["0 claude:opus", "1 small"]);
    assert_eq!(ladder(&Ask { model: Some("claude:opus"), fallback: CloudFallback::Off, ..PLAIN }), ["0 claude:opus"]);
    // A wish for a rung does not restore one that the guard removed.
    let wished = Ask { task: Some("chat"), model: Some("claude:haiku"), fallback: CloudFallback::Off, ..PLAIN };
    assert_eq!(ladder(&wished), ["0 big", "1 small", "3 lan:llama"]);
    let removed = ask(&wished).unwrap().removed;
    assert_eq!((removed.len(), removed[0].rung.position, removed[0].why), (1, 2, "allowCloudFallback is off"));
}

#[test]
fn tr_3_permissions_are_checks_of_their_own() {
    let inside = |model| ask(&Ask { model: Some(model), client: "inside", ..PLAIN });
    assert_eq!(inside("claude:opus").unwrap_err(), Denial::ClientIsLocal);
    assert_eq!(rungs(&inside("task:away").unwrap()), ["1 small"]);
    assert_eq!(rungs(&inside("lan:llama").unwrap()), ["0 lan:llama"]);
    assert_eq!(ladder(&Ask { task: Some("here"), ..PLAIN }), ["0 big", "1 lan:llama"]);
    let error =
        ask(&Ask { model: Some("together:x"), client: "inside", fallback: CloudFallback::Off, ..PLAIN }).unwrap_err();
    assert_eq!(error, Denial::ClientIsLocal);
}

#[test]
fn rc_24_a_clients_names_and_what_it_may_ask_for() {
    let phone = |model| ladder(&Ask { model, client: "phone", ..PLAIN });
    assert_eq!(phone(Some("gpt-4o")).len(), 4);
    assert_eq!(phone(Some("anything")), ["0 small"]);
    assert_eq!(phone(None), ["0 small"]);
    let guest = |model| ask(&Ask { model: Some(model), client: "guest", ..PLAIN });
    assert_eq!(rungs(&guest("task:strict").unwrap()), ["0 big"]);
    assert_eq!(rungs(&guest("little").unwrap()), ["0 small"]);
    assert_eq!(rungs(&guest("task:chat").unwrap()), ["1 small", "3 lan:llama"]);
    assert_eq!(guest("big").unwrap_err(), Denial::ModelNotAllowed("big".into()));
    assert_eq!(guest("claude:opus").unwrap_err(), Denial::ModelNotAllowed("claude:opus".into()));
}

#[test]
fn the_tag_of_ollamas_clients_means_nothing_where_nothing_has_it() {
    let name =
        |client: &'static str, model: &'static str| ask(&Ask { client, model: Some(model), ..PLAIN }).unwrap().name;
    assert_eq!(name("phone", "gpt-4o:latest"), "task:chat");
    assert_eq!(name("c", "task:chat:latest"), "task:chat");
    assert_eq!(name("c", "small:latest"), "small");
    assert_eq!(name("c", "lan:llama:latest"), "lan:llama:latest", "a provider's names are its own");
}
