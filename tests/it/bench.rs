//! `model-boss bench MODEL` and `model-boss load` with fake workers of known rates.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use model_boss_tests::{Behaviour, Boss, FakeError, Sandbox, binary};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

fn command(sandbox: &Sandbox, boss: &Boss, line: &str) -> Command {
    let mut command = Command::new(binary("model-boss"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MODEL_BOSS_")) {
        command.env_remove(name);
    }
    command.env("MODEL_BOSS_URL", format!("http://{}", boss.client().address())).current_dir(sandbox.path(""));
    command.args(line.split_whitespace());
    command
}

/// Starts the command and waits for a line on its standard error, then interrupts it. Returns the exit code and what it
/// wrote from then on.
fn interrupted_after(mut command: Command, wanted: &str) -> (Option<i32>, String, String) {
    let mut child: Child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut seen = String::new();
    while !seen.lines().any(|line| line.contains(wanted)) {
        assert!(errors.read_line(&mut seen).unwrap() > 0, "no '{wanted}' in {seen}");
    }
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let (mut out, mut rest) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    errors.read_to_string(&mut rest).unwrap();
    (child.wait().unwrap().code(), out, rest)
}

fn json(command: &mut Command) -> Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "with --json only a terminal gets progress: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn median(level: &Value, figure: &str) -> f64 {
    level[figure]["median"].as_f64().unwrap_or_else(|| panic!("no {figure} in {level}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn op_1_bench_measures_a_model_beside_another_server() {
    let (sandbox, other) = (Sandbox::new(), Sandbox::new());
    let rate = |tokens_per_s| Behaviour { tokens: 40, tokens_per_s, first_token_ms: 20, ..Behaviour::default() };
    let _ours = sandbox.fake_model_with("alpha", "max_concurrent = 4\n", rate(100.0));
    let _theirs = other.fake_model_with("beta", "max_concurrent = 4\n", rate(25.0));
    let (boss, peer) = (sandbox.start().await, other.start().await);
    let line = format!(
        "bench alpha --streams 1,4 --rounds 2 --tokens 10 --prompt-tokens 16 --against http://{}/v1 \
         --against-model beta",
        peer.client().address()
    );
    let json = json(command(&sandbox, &boss, &line).args(["--json", "--svg", "figures.svg"]));
    for (server, rate) in [(0, 100.0), (1, 25.0)] {
        let levels = json["servers"][server]["levels"].as_array().unwrap();
        assert_eq!(levels.iter().map(|level| level["streams"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 4]);
        for level in levels {
            // A fake worker is never faster than its rate; how much slower it is depends on the machine's load.
            let decode = median(level, "decode");
            assert!(decode > rate / 8.0 && decode < rate * 1.5, "{decode} at {rate}: {level}");
            assert!(level["first_token_p50"].as_f64().unwrap() >= 0.015, "{level}");
            assert_eq!((level["failed"].as_u64(), level["tokens"].as_f64()), (Some(0), Some(10.0)), "{level}");
        }
    }
    assert!(median(&json["ratios"][0], "decode") > 1.0, "{json}");
    let picture = std::fs::read_to_string(sandbox.path("figures.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("alpha at http://"), "{picture}");

    let text = command(&sandbox, &boss, "bench alpha --streams 2 --rounds 1 --tokens 4 --cached").output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("prompts from the cache") && text.contains("STREAMS  FIRST p50"), "{text}");
    boss.finish().await;
    peer.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn op_1_bench_names_the_errors_of_servers() {
    let sandbox = Sandbox::new();
    let refuse = FakeError { status: 503, code: "busy".to_owned(), message: "no bench today".to_owned() };
    let _model = sandbox.fake_model("alpha", Behaviour { refuse: Some(refuse), ..Behaviour::default() });
    let boss = sandbox.start().await;
    let run = |line: &str| {
        let output = command(&sandbox, &boss, line).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let refused = run("bench alpha --streams 1");
    assert!(refused.contains("'alpha' at http://") && refused.contains("no bench today"), "{refused}");
    let unknown = run("bench nobody --streams 1");
    assert!(unknown.contains("404") && unknown.contains("nobody"), "{unknown}");
    let absent = run("bench alpha --against http://127.0.0.1:9/v1 --against-key NO_SUCH_VARIABLE");
    assert!(absent.contains("NO_SUCH_VARIABLE"), "{absent}");
    boss.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn op_1_an_interrupted_bench_shows_what_it_measured() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour { tokens: 4, ..Behaviour::default() });
    let boss = sandbox.start().await;
    let line = "bench alpha --streams 1,2 --rounds 1000 --tokens 4 --prompt-tokens 8";
    let (code, out, _) = interrupted_after(command(&sandbox, &boss, line), "round 3 of 1000");
    assert_eq!(code, Some(130));
    assert!(out.contains("STREAMS  FIRST p50") && out.lines().any(|line| line.starts_with("1  ")), "{out}");
    boss.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn op_1_an_interrupted_load_says_that_it_goes_on() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", Behaviour { hold_load: true, ..Behaviour::default() });
    let boss = sandbox.start().await;
    let load = command(&sandbox, &boss, "load alpha");
    let (code, out, rest) = interrupted_after(load, "loading alpha");
    assert_eq!((code, out.as_str()), (Some(130), ""));
    assert!(rest.contains("the load goes on") && rest.contains("model-boss unload alpha"), "{rest}");
    let mut worker = model.worker().await;
    worker.finish_load();
    worker.ready().await;
    boss.finish().await;
}
