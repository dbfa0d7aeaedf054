mod documents;

use clap::error::ErrorKind;
use serde_json::json;

use model_boss_config::Sources;

use super::testing::{FakeCoordinator, ScriptedAnswer};
use super::*;

fn parse(words: &[&str]) -> Result<Cli, clap::Error> {
    Cli::try_parse_from([&["model-boss"], words].concat())
}

async fn fake(answer: serde_json::Value) -> (FakeCoordinator, Client) {
    let fake = FakeCoordinator::answering(vec![ScriptedAnswer::json(200, &answer)]).await.unwrap();
    let client = Client::new(&fake.url, None).unwrap();
    (fake, client)
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn op_1_help_has_every_command_and_examples() {
    let help = Cli::command().render_long_help().to_string();
    for word in ["serve", "run", "ps", "list", "show", "load", "unload", "config", "completions", "Examples:", "--url"]
    {
        assert!(help.contains(word), "{word} in\n{help}");
    }
}

#[test]
fn every_setting_is_a_flag_with_its_default_and_variable() {
    let mut command = Cli::command();
    let help = command.find_subcommand_mut("serve").unwrap().render_help().to_string().replace(char::is_whitespace, "");
    for setting in model_boss_config::catalogue() {
        let default = format!("[default:{}]", setting.value.trim_matches('"').replace(' ', ""));
        for part in [format!("--{}<", model_boss_config::flag(&setting.path)), default] {
            assert!(help.contains(&part), "{part} in\n{help}");
        }
        assert!(help.contains(&format!("[env:{}]", model_boss_config::variable(&setting.path))), "{}", setting.path);
    }
}

#[test]
fn flags_arrive_as_they_were_written() {
    let line = ["serve", "--config", "a.toml", "--port", "0", "--stay-warm-llm", "10m", "--log-level", "loud"];
    let Command::Serve(flags) = parse(&line).unwrap().command else { panic!("not serve") };
    let sources = flags.sources();
    assert_eq!(sources.file.as_deref(), Some(std::path::Path::new("a.toml")));
    let text = |path: &str, value: &str| (path.to_owned(), value.to_owned());
    assert_eq!(sources.flags, [text("port", "0"), text("stay_warm.llm", "10m"), text("log.level", "loud")]);
}

#[test]
fn the_flag_of_a_list_may_be_given_several_times() {
    let flags = |words: &[&str]| {
        let Command::Serve(flags) = parse(&[&["serve"], words].concat()).unwrap().command else { panic!("not serve") };
        // Variables in the environment of the test run must not count.
        Sources { environment: Vec::new(), ..flags.sources() }.load().unwrap().config
    };
    let config = flags(&["--host", "127.0.0.1", "--host", "[::1]", "--allowed-hosts", "a", "--allowed-hosts", "b,c"]);
    assert_eq!(config.host.iter().map(|host| host.to_string()).collect::<Vec<_>>(), ["127.0.0.1", "::1"]);
    assert_eq!(config.allowed_hosts, ["a", "b", "c"]);
    assert_eq!(flags(&["--allowed-hosts", "[\"a\"]"]).allowed_hosts, ["a"]);
    assert_eq!(parse(&["serve", "--port", "1", "--port", "2"]).unwrap_err().kind(), ErrorKind::ArgumentConflict);
}

#[tokio::test]
async fn load_says_that_run_takes_files() {
    let (fake, client) = fake(json!({})).await;
    let Command::Load(args) = parse(&["load", "./src"]).unwrap().command else { panic!("not load") };
    let error = load::ordered(&client, &args).await.unwrap_err().to_string();
    assert!(error.contains("`model-boss run /") && error.ends_with("src` takes files and folders"), "{error}");
    assert!(fake.asked().is_empty(), "nothing is ordered");
}

#[test]
fn unload_wants_a_name_or_all() {
    assert_eq!(parse(&["unload"]).unwrap_err().kind(), ErrorKind::MissingRequiredArgument);
    assert_eq!(parse(&["unload", "guide", "--all"]).unwrap_err().kind(), ErrorKind::ArgumentConflict);
    assert!(parse(&["unload", "--all"]).is_ok());
}

#[test]
fn only_the_address_of_a_coordinator_is_one() {
    for url in ["https://a.example/v1", "127.0.0.1:8210", "http://", "ftp://a", "http://a/v1", ""] {
        let error = Client::new(url, None).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(&format!("'{url}'")), "{url}: {error}");
    }
    for url in ["http://127.0.0.1:8210", "http://[::1]:8210/", "http://box.example", "https://a.example"] {
        assert!(Client::new(url, None).is_ok(), "{url}");
    }
}

#[test]
fn op_1_the_routes_of_another_server_are_below_its_path() {
    for (url, origin, prefix) in [
        ("http://127.0.0.1:8080/v1", "http://127.0.0.1:8080", ""),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080", ""),
        ("https://a.example/openai/v1/", "https://a.example", "/openai"),
    ] {
        let (client, path) = Client::of_server(url, None).unwrap();
        assert_eq!((client.url(), path.as_str()), (origin, prefix));
    }
    for url in ["a.example/v1", "http://user:hush@a.example/v1", "ftp://a"] {
        let error = Client::of_server(url, None).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(!error.is_empty() && !error.contains("hush"), "{url}: {error}");
    }
}

#[tokio::test]
async fn nobody_there_says_how_to_start_one() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let client = Client::new(&format!("http://127.0.0.1:{port}"), None).unwrap();
    let error = tables::list(&client, false).await.unwrap_err().to_string();
    assert!(error.contains("scripts/run") && error.contains(&port.to_string()), "{error}");
}

#[tokio::test]
async fn list_shows_every_model() {
    let models = json!({ "object": "list", "data": [
        { "id": "guide", "aliases": ["default"], "category": "llm", "device": "auto", "context_length": 512,
          "size": 7_774_208, "status": { "value": "loading", "progress": 0.43 } },
        { "id": "e", "aliases": [], "category": "embedding", "device": "cpu", "context_length": null,
          "size": 1024, "status": { "value": "unloaded" } },
    ] });
    let (_fake, client) = fake(models.clone()).await;
    let table = tables::list(&client, false).await.unwrap();
    let lines: Vec<Vec<&str>> =
        table.lines().map(|line| line.split("  ").filter(|c| !c.is_empty()).collect()).collect();
    assert_eq!(
        lines[1].iter().map(|c| c.trim()).collect::<Vec<_>>(),
        ["guide (default)", "llm", "auto", "512", "7.41 MiB", "loading 43%"]
    );
    assert_eq!(
        lines[2].iter().map(|c| c.trim()).collect::<Vec<_>>(),
        ["e", "embedding", "cpu", "-", "1.00 KiB", "unloaded"]
    );

    let (_fake, client) = fake_again(&models).await;
    let json: serde_json::Value = serde_json::from_str(&tables::list(&client, true).await.unwrap()).unwrap();
    assert_eq!(json, models);
}

async fn fake_again(answer: &serde_json::Value) -> (FakeCoordinator, Client) {
    fake(answer.clone()).await
}

#[tokio::test]
async fn ps_shows_what_is_loaded() {
    let slots = json!({ "slots": [{
        "model": "guide", "state": "ready", "phase": "serving", "progress": 1.0,
        "parts": [["cpu", 1_048_576], ["cuda:0", 3_145_728]], "running": 0, "pinned": true, "unload_at": null,
    }, {
        "model": "other", "state": "loading", "phase": "weights", "progress": 0.5,
        "parts": [["cpu", 1_048_576]], "running": 0, "pinned": false, "unload_at": null,
    }, {
        "model": "busy", "state": "ready", "phase": "serving", "progress": 1.0,
        "parts": [["cpu", 1_048_576]], "running": 1, "pinned": false, "unload_at": null,
        "cores": { "threads": 8, "cores": 8 }, "cpu_share": { "threads": 1, "nice": 7 },
    }] });
    let (fake, client) = fake(slots).await;
    let table = tables::ps(&client, false).await.unwrap();
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[1].starts_with("guide") && lines[1].contains("4.00 MiB  cpu, cuda:0"), "{table}");
    assert!(lines[1].contains("ready") && lines[1].ends_with("pinned"), "{table}");
    assert!(lines[2].contains("loading 50%"), "{table}");
    assert!(lines[1].contains("stay    -") && lines[3].contains("stay    1 of 8, nice 7"), "{table}");
    assert_eq!(fake.asked()[0].line, "GET /api/v1/slots");
}

#[tokio::test]
async fn show_takes_any_name_and_skips_what_is_empty() {
    let model = json!({ "id": "team/m 1", "object": "model", "aliases": [], "size": 1024, "description": "a b",
        "version": null, "status": { "value": "loaded" } });
    let (fake, client) = fake(model).await;
    let table = tables::show(&client, "team/m 1", false).await.unwrap();
    assert_eq!(fake.asked()[0].line, "GET /v1/models/team/m%201");
    assert!(table.starts_with("FIELD"), "{table}");
    for expected in ["description  a b", "id           team/m 1", "size         1.00 KiB"] {
        assert!(table.lines().any(|line| line.trim_end() == expected), "{table}");
    }
}

/// The arguments of one command, parsed from words.
fn args<T>(words: &[&str], pick: impl Fn(Command) -> Option<T>) -> T {
    pick(parse(words).unwrap().command).unwrap()
}

#[tokio::test]
async fn orders_carry_what_was_said() {
    let load =
        |words: &[&str]| args(words, |command| if let Command::Load(load) = command { Some(load) } else { None });
    let (asked, client) = fake(json!({ "status": "loaded", "model_name": "guide" })).await;
    assert_eq!(load::ordered(&client, &load(&["load", "default"])).await.unwrap(), "guide is loaded\n");
    assert_eq!(asked.asked()[0].body, json!({ "model_name": "default", "priority": 2 }));

    let (asked, client) = fake(json!({ "status": "loading", "model_name": "guide" })).await;
    let words = "load guide --device cuda:1 --ctx-size 8192 --residency stream --window 2 --block 1 --vram 6GiB --kv-cache-type q8_0 \
                 --keep-alive -1 --no-wait";
    let words: Vec<&str> = words.split_whitespace().collect();
    assert_eq!(load::ordered(&client, &load(&words)).await.unwrap(), "guide is loading\n");
    let asked = &asked.asked()[0];
    assert_eq!(asked.line, "POST /api/v1/load?wait=false");
    let body = json!({
        "model_name": "guide", "priority": 2, "device": "cuda:1", "ctx_size": 8192, "keep_alive": -1.0,
        "residency": "stream", "window": 2, "block": 1, "vram": 6_u64 << 30, "kv_cache_type": "q8_0",
    });
    assert_eq!(asked.body, body);

    let (asked, client) = fake(json!({ "status": "unloaded", "model_name": null })).await;
    assert_eq!(orders::unload(&client, None).await.unwrap(), "every model is unloaded\n");
    assert_eq!(asked.asked()[0].body, json!({}));

    let moved =
        |words: &[&str]| args(words, |command| if let Command::Move(args) = command { Some(args) } else { None });
    let (asked, client) = fake(json!({ "status": "moved", "model_name": "team/m 1", "device": "cuda:1" })).await;
    let told = orders::move_to(&client, &moved(&["move", "team/m 1", "cuda:1", "--evict"])).await.unwrap();
    assert_eq!(told, "team/m 1 serves from cuda:1\n");
    assert_eq!(asked.asked()[0].line, "POST /api/v1/models/team/m%201/device");
    assert_eq!(asked.asked()[0].body, json!({ "device": "cuda:1", "evict": true, "priority": 2 }));

    let free =
        |words: &[&str]| args(words, |command| if let Command::Free(args) = command { Some(args) } else { None });
    let (asked, client) = fake(json!({ "status": "free", "device": "cuda:0" })).await;
    assert!(orders::free(&client, &free(&["free", "cuda"])).await.unwrap().starts_with("cuda:0 is free"));
    assert_eq!(asked.asked()[0].line, "POST /api/v1/devices/cuda/drain");
    let (asked, client) = fake(json!({ "status": "open", "device": "cuda:0" })).await;
    orders::free(&client, &free(&["free", "cuda:0", "--back"])).await.unwrap();
    assert_eq!(asked.asked()[0].line, "POST /api/v1/devices/cuda:0/open");
}
