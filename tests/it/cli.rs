//! Tests of the command line, in the ways that persons and scripts use it.

use std::process::{Command, Output};

use model_boss_tests::{Behaviour, Boss, Sandbox, binary};
use serde_json::{Value, json};

/// Runs `model-boss ARGS` against this coordinator, or none.
fn cli(boss: Option<&Boss>, sandbox: &Sandbox, args: &[&str]) -> Output {
    let mut command = Command::new(binary("model-boss"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MODEL_BOSS_")) {
        command.env_remove(name);
    }
    let url =
        boss.map_or_else(|| "http://127.0.0.1:9".to_owned(), |boss| format!("http://{}", boss.client().address()));
    command.env("MODEL_BOSS_URL", url).current_dir(sandbox.path("")).args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[tokio::test]
async fn op_1_run_prints_the_answer() {
    let sandbox = Sandbox::new();
    let _model =
        sandbox.fake_model("alpha", Behaviour { reply: Some("good day to you".to_owned()), ..Behaviour::default() });
    let boss = sandbox.start().await;
    assert_eq!(stdout(&cli(Some(&boss), &sandbox, &["run", "alpha", "hello"])).trim(), "good day to you");
    let error = stderr(&cli(Some(&boss), &sandbox, &["run", "alhpa", "hello"]));
    assert!(error.contains("alhpa"), "{error}");
    boss.finish().await;
}

#[tokio::test]
async fn op_1_list_and_ps_as_json() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let json = |args: &[&str]| -> Value { serde_json::from_str(&stdout(&cli(Some(&boss), &sandbox, args))).unwrap() };
    assert!(json(&["list", "--json"]).to_string().contains("alpha"));
    assert!(!json(&["ps", "--json"]).to_string().contains("alpha"));
    assert!(boss.chat("alpha", "?").await.status.is_success());
    assert!(json(&["ps", "--json"]).to_string().contains("alpha"));
    assert!(stdout(&cli(Some(&boss), &sandbox, &["ps"])).contains("alpha"));
    boss.finish().await;
}

#[tokio::test]
async fn dm_10_what_a_manifest_says_about_its_model_is_shown() {
    let sandbox = Sandbox::new();
    let about = "vram = \"64MiB\"\nversion = \"1.2\"\ndescription = \"a b\"\nauthor = \"Ada\"\nlicense = \"MIT\"\n\
                 tags = [\"red\", \"small\"]\n[custom]\nteam = \"blue\"";
    let _model = sandbox.fake_model_with("alpha", about, Behaviour::default());
    let boss = sandbox.start().await;
    let model = boss.read("/v1/models/alpha").await;
    for (field, value) in [("version", "1.2"), ("description", "a b"), ("author", "Ada"), ("license", "MIT")] {
        assert_eq!(model[field], value, "{model}");
    }
    assert_eq!((&model["tags"], &model["custom"]), (&json!(["red", "small"]), &json!({ "team": "blue" })));
    let shown = stdout(&cli(Some(&boss), &sandbox, &["show", "alpha"]));
    for text in ["1.2", "a b", "Ada", "MIT", "red, small", "blue"] {
        assert!(shown.contains(text), "{text} in\n{shown}");
    }
    boss.finish().await;
}

#[test]
fn without_a_coordinator_it_says_how_to_start_one() {
    let sandbox = Sandbox::new();
    for args in [&["list"][..], &["ps"], &["run", "alpha", "hello"]] {
        let error = stderr(&cli(None, &sandbox, args));
        assert!(error.contains("127.0.0.1:9") && error.contains("model-boss serve"), "{args:?}: {error}");
    }
}

#[test]
fn the_program_explains_itself() {
    let sandbox = Sandbox::new();
    assert!(stdout(&cli(None, &sandbox, &["--version"])).starts_with("model-boss 0."));
    let help = stdout(&cli(None, &sandbox, &["--help"]));
    for command in ["serve", "run", "ps", "list", "config", "completions"] {
        assert!(help.contains(command), "{command} in\n{help}");
    }
    assert!(stdout(&cli(None, &sandbox, &["completions", "bash"])).contains("model-boss"));
}

#[test]
fn every_mistake_in_the_configuration_is_reported_at_once() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("bad.toml"), "prot = 8210\nload_timeout = 30\nlog.level = \"loud\"\n").unwrap();
    let error = stderr(&cli(None, &sandbox, &["serve", "--config", "bad.toml", "--port", "99999"]));
    for part in ["prot", "load_timeout", "loud", "99999"] {
        assert!(error.contains(part), "{part} in\n{error}");
    }
}

#[test]
fn config_show_says_which_source_won() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("mine.toml"), "stop_grace = \"3s\"\n").unwrap();
    let shown = stdout(&cli(None, &sandbox, &["config", "show", "--origin", "--config", "mine.toml"]));
    let line =
        |name: &str| shown.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name} in\n{shown}"));
    assert!(line("stop_grace").contains("3s") && line("stop_grace").contains("mine.toml:1"), "{shown}");
    assert!(line("drain_grace").contains("default"), "{shown}");
}
