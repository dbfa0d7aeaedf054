//! Malicious chat templates and tokenizers in a real worker. They cost their own request an error, or their own model
//! its load, and affect no other request.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use model_boss_protocol::{ByteCount, TextLimits, WorkerExit, WorkerSpec};
use model_boss_tests::{Answer, Client, LoneWorker, PATIENCE, Processes, Sandbox, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::real_model::guide;

/// A template that runs the attack named in the request, and otherwise equals the guide's own.
const TEMPLATE: &str = r#"
{%- set l = range(9999) | list -%}
{%- set ns = namespace(x='0123456789abcdef', l=[]) -%}
{%- macro doubled(x, n) -%}{%- if n -%}{{ doubled(x ~ x, n - 1) }}{%- else -%}{{ x | length }}{%- endif -%}{%- endmacro -%}
{%- macro endless(n) -%}{{ endless(n + 1) }}{%- endmacro -%}
{%- if attack == 'concatenate' -%}{%- for i in range(60) -%}{%- set ns.x = ns.x ~ ns.x -%}{%- endfor -%}
{%- elif attack == 'replace' -%}{%- for i in range(60) -%}{%- set ns.x = ns.x | replace('0', '00000000') -%}{%- endfor -%}
{%- elif attack == 'join' -%}{{ (l * 9999) | join('xxxxxxxxxxxxxxxx') | length }}
{%- elif attack == 'lists' -%}{%- for i in range(60) -%}{%- set ns.l = (ns.l or l) + (ns.l or l) -%}{%- endfor -%}{{ (ns.l | list) | length }}
{%- elif attack == 'format' -%}{{ ("%999999999s" | format('x')) | length }}
{%- elif attack == 'macro' -%}{{ doubled('0123456789abcdef', 60) }}
{%- elif attack == 'split' -%}{%- for i in range(22) -%}{%- set ns.x = ns.x ~ ns.x -%}{%- endfor -%}{{ ns.x.split('0') | list | length }}
{%- elif attack == 'indent' -%}{{ ('x\n' * 99999) | indent(99999) | length }}
{%- elif attack == 'sort' -%}{%- for i in range(9999) -%}{%- for j in range(99) -%}{%- set x = l | sort | length -%}{%- endfor -%}{%- endfor -%}
{%- elif attack == 'tojson' -%}{%- for i in range(9999) -%}{%- for j in range(99) -%}{%- set x = l | tojson | length -%}{%- endfor -%}{%- endfor -%}
{%- elif attack == 'in' -%}{%- for i in range(9999) -%}{%- for j in range(99) -%}{%- set x = -1 in l -%}{%- endfor -%}{%- endfor -%}
{%- elif attack == 'equal' -%}{%- set m = range(9999) | list -%}{%- for i in range(9999) -%}{%- for j in range(99) -%}{%- set x = l == m -%}{%- endfor -%}{%- endfor -%}
{%- elif attack == 'steps' -%}{%- for i in range(9999) -%}{%- for j in range(9999) -%}{%- endfor -%}{%- endfor -%}
{%- elif attack == 'output' -%}{%- for i in range(9999) -%}{{ 'x' * 99999 }}{%- endfor -%}
{%- elif attack == 'recursion' -%}{{ endless(0) }}
{%- elif attack == 'range' -%}{{ range(1000000000) | list | length }}
{%- elif attack == 'multiply' -%}{{ ('x' * 99999999999) | length }}
{%- elif attack == 'slow' -%}{%- for i in range(9999) -%}{%- for j in range(99) -%}{%- set x = 0.1 | round(399) | round(399) | round(399) | round(399) | round(399) | round(399) | round(399) | round(399) -%}{%- endfor -%}{%- endfor -%}
{%- elif attack == 'hoard' -%}{%- for i in range(9) -%}{%- set ns.l = ns.l + ['x' * 60000000 ~ i] -%}{%- endfor -%}
{%- elif attack == 'while' -%}{%- for i in range(rounds) -%}{%- for j in range(9) -%}{%- set x = 0.1 | round(399) | round(399) | round(399) | round(399) | round(399) | round(399) | round(399) | round(399) -%}{%- endfor -%}{%- endfor -%}
{%- endif -%}
{%- for message in messages -%}<|user|> {{ message.content }}<|end|>{%- endfor -%}<|assistant|>"#;

/// Attacks that exceed a limit, and end with its error.
const OVER: [&str; 16] = [
    "concatenate",
    "replace",
    "join",
    "lists",
    "format",
    "macro",
    "split",
    "indent",
    "sort",
    "tojson",
    "in",
    "equal",
    "steps",
    "output",
    "slow",
    "hoard",
];

/// Attacks that the template engine refuses by itself.
const REFUSED: [&str; 3] = ["recursion", "range", "multiply"];

/// The guide's files, some of them replaced.
fn model(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(guide()).unwrap().flatten().filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

/// The guide's `tokenizer.json`, changed.
fn tokenizer(change: impl FnOnce(&mut Value)) -> String {
    let mut json: Value = serde_json::from_slice(&fs::read(guide().join("tokenizer.json")).unwrap()).unwrap();
    change(&mut json);
    json.to_string()
}

fn limited(time: Duration) -> TextLimits {
    TextLimits { time, ..TextLimits::default() }
}

fn chat(variables: Value) -> Value {
    json!({"messages": [{"role": "user", "content": "which port does model-boss listen on"}], "temperature": 0,
           "max_tokens": 8, "chat_template_kwargs": variables})
}

async fn worker(folder: &Path, text: TextLimits) -> LoneWorker {
    let mut worker = LoneWorker::spawn("model-boss-worker");
    worker.open_gate_with(folder, |spec: &mut WorkerSpec| spec.text = text);
    worker.ready().await;
    worker
}

/// Anonymous memory of one process.
fn anonymous(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}

/// Sends plain requests one after another, and measures the memory of a worker and its processes, until stopped.
struct Witness {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicUsize>,
    most: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Witness {
    async fn of(worker: &LoneWorker) -> Self {
        let (stop, answers, most) = (Arc::default(), Arc::default(), Arc::default());
        let mut witness = Self { stop, answers, most, tasks: Vec::new() };
        let (stop, answers, address) = (Arc::clone(&witness.stop), Arc::clone(&witness.answers), worker.address());
        let first = worker.post("/v1/chat/completions", &chat(json!({}))).await.text();
        witness.tasks.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let client = Client::new(address);
                let mut request =
                    client.request(http::Method::POST, "/v1/chat/completions", chat(json!({})).to_string());
                let bearer = format!("Bearer {}", LoneWorker::token().reveal());
                request.headers_mut().insert(http::header::AUTHORIZATION, bearer.parse().unwrap());
                assert_eq!(client.send(request).await.text(), first);
                answers.fetch_add(1, Ordering::Relaxed);
            }
        }));
        let (stop, most, pid) = (Arc::clone(&witness.stop), Arc::clone(&witness.most), worker.pid());
        witness.tasks.push(tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_millis(10));
            while !stop.load(Ordering::Relaxed) {
                ticks.tick().await;
                let all = Processes::below(pid).pids().chain([pid]).map(anonymous).sum();
                most.fetch_max(all, Ordering::Relaxed);
            }
        }));
        witness
    }

    /// The number of answers, and the most memory that was measured.
    async fn end(self) -> (usize, ByteCount) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        (self.answers.load(Ordering::Relaxed), ByteCount(self.most.load(Ordering::Relaxed)))
    }
}

fn limit_of(answer: &Answer) -> (StatusCode, String) {
    (answer.status, answer.error_code())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn en_4_a_hostile_template_costs_its_own_request_an_error_and_nothing_more() {
    let folder = model(&[("chat_template.jinja", TEMPLATE)]);
    let worker = worker(folder.path(), limited(Duration::from_secs(2))).await;
    let witness = Witness::of(&worker).await;
    for attack in OVER {
        let answer = worker.post("/v1/chat/completions", &chat(json!({"attack": attack}))).await;
        assert_eq!(limit_of(&answer), (StatusCode::BAD_REQUEST, "template_failed".to_owned()), "{attack}: {answer:?}");
        assert_eq!(answer.json()["error"]["param"], "messages");
    }
    for path in ["/tokenize", "/apply-template"] {
        let answer = worker.post(path, &chat(json!({"attack": "concatenate"}))).await;
        assert_eq!(limit_of(&answer), (StatusCode::BAD_REQUEST, "template_failed".to_owned()), "{path}: {answer:?}");
    }
    for attack in REFUSED {
        let answer = worker.post("/v1/chat/completions", &chat(json!({"attack": attack}))).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{attack}: {answer:?}");
    }
    // The number of simultaneous requests exceeds that of processes.
    let at_once = ["slow", "hoard", "tojson", "join"].map(|attack| worker.ask(&chat(json!({"attack": attack}))));
    for answer in at_once {
        assert_eq!(limit_of(&answer.await.unwrap()), (StatusCode::BAD_REQUEST, "template_failed".to_owned()));
    }
    let (answers, most) = witness.end().await;
    assert!(answers > 0, "others were answered meanwhile");
    assert!(most < ByteCount::mib(2 * 256 + 100), "{most}");
}

#[tokio::test]
async fn en_4_the_limit_that_was_reached_is_named() {
    let folder = model(&[("chat_template.jinja", TEMPLATE)]);
    let hour = Duration::from_secs(3_600);
    for (attack, time, words) in [
        ("slow", Duration::from_millis(1_500), "longer than 1.5 s on this request"),
        ("hoard", hour, "256 MiB of memory"),
        ("concatenate", hour, "256 MiB of memory"),
        ("steps", hour, "takes more than 20 million steps"),
        ("output", hour, "writes more than 64 MiB"),
    ] {
        let worker = worker(folder.path(), limited(time)).await;
        let answer = worker.post("/v1/chat/completions", &chat(json!({"attack": attack}))).await.json();
        let message = answer["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(words) && message.contains("shorten the request"), "{attack}: {message}");
    }
}

/// Only the client's disconnection can end these renderings.
#[tokio::test]
async fn rc_11_a_client_that_leaves_ends_its_rendering() {
    let folder = model(&[("chat_template.jinja", TEMPLATE)]);
    let worker = worker(folder.path(), limited(Duration::from_secs(3_600))).await;
    let before = Processes::below(worker.pid());
    for path in 0..3 {
        let asked = worker.ask(&chat(json!({"attack": "while", "rounds": 99_999, "path": path})));
        let busy = until(PATIENCE, "a process renders", async || busy_below(worker.pid())).await;
        asked.abort();
        let gone = async || (!Processes::below(worker.pid()).pids().any(|pid| pid == busy)).then_some(());
        until(PATIENCE, "its rendering ended", gone).await;
    }
    assert!(before.pids().any(|pid| Processes::below(worker.pid()).pids().any(|other| other == pid)), "the host stays");
    assert_eq!(worker.post("/v1/chat/completions", &chat(json!({}))).await.status, StatusCode::OK);
}

/// A process that renders for this worker, if there is one: it has used the CPU for a while. It is a child of a process
/// that only loads, which is a child of the worker's launcher.
fn busy_below(worker: u32) -> Option<u32> {
    let launcher = launcher_of(worker)?;
    Processes::below(worker)
        .pids()
        .find(|pid| ![worker, launcher].contains(&figure(*pid, PARENT)) && figure(*pid, HUNDREDTHS_OF_CPU) > 10)
}

/// The process that starts the worker's text processes.
fn launcher_of(worker: u32) -> Option<u32> {
    Processes::below(worker).pids().find(|pid| figure(*pid, PARENT) == worker)
}

const PARENT: usize = 1;
const HUNDREDTHS_OF_CPU: usize = 11;

/// A field of `/proc/PID/stat` behind the name.
fn figure(pid: u32, at: usize) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let field = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(at)?.parse().ok());
    field.unwrap_or(0)
}

#[tokio::test]
async fn requests_outlive_the_processes_that_work_on_them() {
    let folder = model(&[("chat_template.jinja", TEMPLATE)]);
    let worker = worker(folder.path(), limited(Duration::from_secs(3_600))).await;
    let expected = worker.post("/v1/chat/completions", &chat(json!({}))).await.text();
    // The rendering takes about a second, and is found by then.
    let slow = chat(json!({"attack": "while", "rounds": 4_000}));
    let renderer_only = async |asked: &Value| {
        let answer = worker.ask(asked);
        let busy = until(PATIENCE, "a process renders", async || busy_below(worker.pid())).await;
        kill(Pid::from_raw(busy.cast_signed()), Signal::SIGKILL).unwrap();
        answer.await.unwrap()
    };
    assert_eq!(renderer_only(&slow).await.text(), expected);
    let answer = worker.ask(&slow);
    until(PATIENCE, "a process renders", async || busy_below(worker.pid())).await;
    let all = Processes::below(worker.pid()).without(launcher_of(worker.pid()).unwrap());
    for pid in all.pids() {
        // The process may have ended together with an earlier one.
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
    assert_eq!(answer.await.unwrap().text(), expected);
    until(PATIENCE, "none is left", async || all.alive().is_empty().then_some(())).await;
}

/// A confined worker cannot start another launcher, so its coordinator has to start another worker.
#[tokio::test]
async fn op_5_a_worker_without_its_launcher_ends_and_says_why() {
    let folder = model(&[]);
    let worker = worker(folder.path(), TextLimits::default()).await;
    let all = Processes::below(worker.pid());
    kill(Pid::from_raw(launcher_of(worker.pid()).unwrap().cast_signed()), Signal::SIGKILL).unwrap();
    // The text processes end with their launcher.
    until(PATIENCE, "none is left", async || all.alive().is_empty().then_some(())).await;
    let _asked = worker.ask(&chat(json!({})));
    let (code, words) = worker.end().await;
    assert_eq!(code, Some(WorkerExit::DeviceLost.code()), "{words}");
    assert!(words.lines().last().unwrap().contains("cannot be started"), "{words}");
}

#[tokio::test]
async fn a_killed_worker_leaves_no_process_that_renders() {
    let folder = model(&[("chat_template.jinja", TEMPLATE)]);
    let worker = worker(folder.path(), limited(Duration::from_secs(3_600))).await;
    let _asked = worker.ask(&chat(json!({"attack": "while", "rounds": 99_999})));
    until(PATIENCE, "a process renders", async || busy_below(worker.pid())).await;
    let all = Processes::below(worker.pid());
    assert!(all.pids().count() >= 2, "{}", all.describe());
    worker.signal(Signal::SIGKILL);
    until(PATIENCE, "none is left", async || all.alive().is_empty().then_some(())).await;
}

#[tokio::test]
async fn the_text_processes_have_nothing_of_the_workers() {
    let folder = model(&[]);
    let worker = worker(folder.path(), TextLimits::default()).await;
    assert_eq!(worker.post("/v1/chat/completions", &chat(json!({}))).await.status, StatusCode::OK);
    let processes = Processes::below(worker.pid());
    assert!(processes.pids().count() >= 2, "{}", processes.describe());
    for pid in processes.pids() {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
        let names = environment.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
        for entry in names.map(|entry| String::from_utf8_lossy(entry).into_owned()) {
            assert!(entry.starts_with("TZ=") || entry.starts_with("LD_LIBRARY_PATH="), "{entry}");
        }
        let open: Vec<PathBuf> = fs::read_dir(format!("/proc/{pid}/fd"))
            .unwrap()
            .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
            .collect();
        // A host watches its own memory.
        let foreign = |path: &&PathBuf| {
            let name = path.to_string_lossy();
            !path.starts_with("/dev/null") && !name.starts_with("socket:") && !name.ends_with("/statm")
        };
        assert_eq!(open.iter().find(foreign), None, "{open:?}");
        assert!(open.len() <= 6, "{open:?}");
    }
}

/// Malicious files make a model's own load fail with a clear error, and use none of the machine's memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_files_are_a_bad_model_and_named() {
    let nested =
        |open: &str, close: &str, depth: usize| format!("{{{{ {}1{} }}}}", open.repeat(depth), close.repeat(depth));
    let split = |pattern: &str| {
        let cut = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        tokenizer(|json| json["pre_tokenizer"] = cut)
    };
    let blocks = format!("{}{}", "{% if 1 %}".repeat(100_000), "{% endif %}".repeat(100_000));
    let huge = json!(u32::MAX);
    let cases: BTreeMap<&str, (&str, String)> = BTreeMap::from([
        ("nested lists", ("chat_template.jinja", nested("[", "]", 100_000))),
        ("nested parentheses", ("chat_template.jinja", nested("(", ")", 500_000))),
        ("not not not", ("chat_template.jinja", nested("not ", "", 500_000))),
        ("minus minus minus", ("chat_template.jinja", nested("-", "", 500_000))),
        ("nested blocks", ("chat_template.jinja", blocks)),
        ("a regex of gigabytes", ("tokenizer.json", split("(((a{1000}){1000}){1000}){1000}"))),
        ("an id of gigabytes", ("tokenizer.json", tokenizer(|json| json["model"]["vocab"]["zzz"] = huge))),
        (
            "a broken charsmap",
            (
                "tokenizer.json",
                tokenizer(|json| {
                    json["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "ABAA"});
                }),
            ),
        ),
        ("nested JSON", ("tokenizer.json", "[".repeat(1_000_000))),
    ]);
    for (name, (file, text)) in cases {
        let folder = model(&[(file, &text)]);
        let mut worker = LoneWorker::spawn("model-boss-worker");
        worker.open_gate(folder.path());
        let (code, words) = worker.end().await;
        assert_eq!(code, Some(WorkerExit::BadModel.code()), "{name}: {words}");
        let last = words.lines().last().unwrap_or_default().to_owned();
        assert!(last.contains("tokenizer") || last.contains("template"), "{name}: {last}");
    }
}

#[tokio::test]
async fn files_that_are_none_or_too_large_are_refused_unread() {
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        let folder = model(&[]);
        let path = folder.path().join(name);
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut worker = LoneWorker::spawn("model-boss-worker");
        worker.open_gate(folder.path());
        let (code, words) = worker.end().await;
        assert_eq!(code, Some(WorkerExit::BadModel.code()), "{name}: {words}");
        assert!(words.contains(name) && words.contains("no regular file"), "{name}: {words}");
        fs::remove_file(&path).unwrap();
        fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let mut worker = LoneWorker::spawn("model-boss-worker");
        worker.open_gate(folder.path());
        let (code, words) = worker.end().await;
        assert_eq!(code, Some(WorkerExit::BadModel.code()), "{name}: {words}");
        assert!(words.contains(name) && words.contains("at most"), "{name}: {words}");
    }
}

/// Files that load without fault, but attack when they get a text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn en_4_a_hostile_tokenizer_costs_its_own_request_an_error() {
    let grow = |factor: usize| json!({"type": "Replace", "pattern": {"String": "q"}, "content": "q".repeat(factor)});
    let times = vec![grow(64); 6];
    let prepend = json!({"type": "Prepend", "prepend": "w".repeat(50_000_000)});
    for (name, normalizer) in [("replace", json!({"type": "Sequence", "normalizers": times})), ("prepend", prepend)] {
        let folder = model(&[("tokenizer.json", &tokenizer(|json| json["normalizer"] = normalizer))]);
        let worker = worker(folder.path(), limited(Duration::from_secs(10))).await;
        for (path, field) in [("/v1/completions", "prompt"), ("/tokenize", "content")] {
            let answer = worker.post(path, &json!({field: "q"})).await;
            assert_eq!(
                limit_of(&answer),
                (StatusCode::BAD_REQUEST, "template_failed".to_owned()),
                "{name} {path}: {answer:?}"
            );
        }
        assert!(anonymous(worker.pid()) < ByteCount::mib(200).0, "{name}: {}", anonymous(worker.pid()));
    }
}

#[tokio::test]
async fn the_coordinator_passes_the_error_on_and_does_not_try_again() {
    let folder = model(&[("chat_template.jinja", TEMPLATE)]);
    let sandbox = Sandbox::new().with_config("text.time = \"1500ms\"");
    sandbox.model("hostile", folder.path(), "");
    let boss = sandbox.start_with_real_worker().await;
    let mut body = chat(json!({"attack": "format"}));
    body["model"] = "hostile".into();
    for stream in [false, true] {
        body["stream"] = stream.into();
        let answer = boss.client().post("/v1/chat/completions", &body).await;
        let (code, source) = if stream {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            let data = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or(&text).to_owned();
            let json: Value = serde_json::from_str(&data).unwrap();
            (json["error"]["code"].clone(), json["source"].clone())
        } else {
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
            (answer.json()["error"]["code"].clone(), answer.json()["source"].clone())
        };
        assert_eq!((code, source), (json!("template_failed"), json!("worker")));
    }
    body["stream"] = false.into();
    body["chat_template_kwargs"] = json!({"attack": "slow"});
    let late = boss.client().post("/v1/chat/completions", &body).await.json();
    let message = late["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("longer than 1.5 s"), "what the operator set holds: {message}");
    let mut plain = chat(json!({}));
    plain["model"] = "hostile".into();
    assert!(!boss.client().post("/v1/chat/completions", &plain).await.text().is_empty());
}
