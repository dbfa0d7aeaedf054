//! LE-2 and LE-3 with real processes on a simulated machine. Other programs lease memory through the coordinator,
//! models and training jobs release memory for each other, and every request shows what it waits for.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use http::Method;
use model_boss_lease_store::{Process, process, this_process};
use model_boss_tests::{Answer, Behaviour, Boss, Event, PATIENCE, RedisServer, Sandbox, binary, question, until};
use serde_json::{Value, json};

const ONE: &str = "[cpu]\nmemory = \"8GiB\"\n[[gpu]]\nmemory = \"24GiB\"\n";
const GIB: u64 = 1 << 30;
/// The uid of a user who owns no file here.
const NOBODY: u32 = 65_534;

/// A program of this host that holds leases over HTTP.
struct Guest<'a> {
    boss: &'a Boss,
    owner: Process,
}

impl<'a> Guest<'a> {
    fn new(boss: &'a Boss) -> Self {
        Self { boss, owner: this_process().unwrap() }
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Answer {
        let client = self.boss.client();
        client.send(client.request(method, &format!("/api/v1/leases{path}"), body.to_string())).await
    }

    fn owner(&self, label: &str) -> Value {
        let Process { pid, start_time, pid_ns } = self.owner.clone();
        json!({ "pid": pid, "start_time": start_time, "pid_ns": pid_ns, "label": label })
    }

    fn wish(&self, label: &str, gib: u64) -> Value {
        json!({
            "request_id": format!("{label}-{}", self.owner.pid), "owner": self.owner(label),
            "parts": [{ "device": "cuda:0", "memory": format!("{gib}GiB") }], "min_hold": "0s",
        })
    }

    async fn ask(&self, wish: &Value) -> Answer {
        self.send(Method::POST, "", wish).await
    }

    /// Repeats the request until it is granted.
    async fn granted(&self, wish: &Value) -> Value {
        let ask = async || {
            let answer = self.ask(wish).await;
            assert!([201, 202].contains(&answer.status.as_u16()), "{answer:?}");
            (answer.status == 201).then(|| answer.json()["lease"].clone())
        };
        until(PATIENCE, "the lease is granted", ask).await
    }

    async fn attach(&self, lease: &Value, pid: u32) -> Answer {
        self.send(Method::POST, &path(lease, "/attach"), &json!({ "token": lease["token"], "pids": [pid] })).await
    }

    async fn renew(&self, lease: &Value) -> Value {
        let leases = json!({ "leases": [{ "id": lease["id"], "token": lease["token"] }] });
        self.send(Method::PUT, "", &leases).await.json()
    }

    async fn release(&self, lease: &Value) -> Answer {
        self.send(Method::DELETE, &path(lease, ""), &json!({ "token": lease["token"] })).await
    }
}

fn path(lease: &Value, verb: &str) -> String {
    format!("/{}{verb}", lease["id"].as_str().unwrap())
}

/// A process that only sleeps until it is ended.
struct Job(Child);

impl Job {
    fn start() -> Self {
        Self(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

fn at(priority: u64, model: &str) -> Value {
    let mut body = question(model, "?");
    body["x_priority"] = priority.into();
    body
}

async fn wait_of(boss: &Boss, reason: &str) -> (Value, String) {
    let look = async || {
        let queue = boss.read("/api/v1/queue").await;
        let first = queue["queue"].as_array()?.first()?.clone();
        (first["wait"]["reason"] == reason)
            .then(|| (first["wait"].clone(), first["message"].as_str().unwrap().to_owned()))
    };
    until(PATIENCE, &format!("somebody waits, and the reason is '{reason}'"), look).await
}

async fn is_loaded(boss: &Boss, model: &str) -> bool {
    let slots = boss.read("/api/v1/slots").await;
    slots["slots"].as_array().unwrap().iter().any(|slot| slot["model"] == model)
}

/// Sends a request as another user of this machine; returns status and body. `None` if the tests may not become another
/// user.
fn as_another_user(boss: &Boss, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
    if !nix::unistd::Uid::effective().is_root() {
        eprintln!("skipped: only root can ask as another user");
        return None;
    }
    let (address, body) = (boss.client().address(), body.to_string());
    let (host, port, length) = (address.ip(), address.port(), body.len());
    let head = format!("{method} /api/v1/leases{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    let request = format!("{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}");
    let script = "exec 3<>/dev/tcp/$0/$1; printf %s \"$2\" >&3; cat <&3";
    let mut bash = Command::new("bash");
    bash.args(["-c", script, &host.to_string(), &port.to_string(), &request]);
    let answer = bash.uid(NOBODY).gid(NOBODY).current_dir("/").output().unwrap();
    let answer = String::from_utf8(answer.stdout).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: '{answer}'"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Some((status, serde_json::from_str(body).unwrap()))
}

async fn none_is_left(boss: &Boss) {
    let none = async || {
        let list = boss.read("/api/v1/leases").await;
        (list["leases"] == json!([]) && list["waiters"] == json!([])).then_some(())
    };
    until(PATIENCE, "no lease is left", none).await;
}

#[tokio::test]
async fn le_2_a_program_holds_memory_through_the_coordinator() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(ONE);
    let boss = sandbox.start().await;
    let guest = Guest::new(&boss);
    let wish = guest.wish("train.py", 18);
    let answer = guest.ask(&wish).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let granted = answer.json();
    assert_eq!((granted["heartbeat_ms"].as_u64(), granted["term_ms"].as_u64()), (Some(3_000), Some(15_000)));
    let lease = &granted["lease"];
    assert_eq!((&lease["state"], &lease["parts"][0]["bytes"]), (&json!("pending"), &json!(18 * GIB)));
    assert_eq!(lease["parts"][0]["uuid"], "GPU-played-0");
    // A repeated request gives the same lease; other callers see it without its token.
    assert_eq!(guest.ask(&wish).await.json()["lease"]["id"], lease["id"]);
    let shown = boss.read(&format!("/api/v1/leases{}", path(lease, ""))).await;
    assert_eq!((&shown["lease"]["id"], &shown["lease"]["token"]), (&lease["id"], &Value::Null));

    let job = Job::start();
    assert_eq!(guest.attach(lease, job.0.id()).await.json()["lease"]["state"], "active");
    let renewed = guest.renew(lease).await;
    assert_eq!((&renewed["leases"][0]["id"], &renewed["lost"]), (&lease["id"], &json!([])));
    let resize =
        |gib: u64| json!({ "token": lease["token"], "parts": [{ "device": "cuda:0", "memory": format!("{gib}GiB") }] });
    let smaller = guest.send(Method::PUT, &path(lease, ""), &resize(4)).await;
    assert_eq!(smaller.json()["lease"]["parts"][0]["bytes"], 4 * GIB);
    let larger = guest.send(Method::PUT, &path(lease, ""), &resize(30)).await;
    assert_eq!((larger.status.as_u16(), larger.error_code()), (409, "lease_no_room".to_owned()));

    // Another caller cannot end it, and even its holder can only release it when its process is gone.
    let stranger = guest.send(Method::DELETE, &path(lease, ""), &json!({})).await;
    assert_eq!(stranger.error_code(), "lease_in_use");
    let early = guest.release(lease).await;
    assert_eq!((early.status.as_u16(), &early.json()["state"]), (202, &json!("limbo")));
    job.end();
    none_is_left(&boss).await;
    assert_eq!(guest.attach(lease, std::process::id()).await.error_code(), "lease_lost");
    boss.finish().await;
}

#[tokio::test]
async fn le_2_what_makes_no_sense_is_refused_with_its_reason() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(ONE);
    let boss = sandbox.start().await;
    let guest = Guest::new(&boss);
    let with = |change: &dyn Fn(&mut Value)| {
        let mut wish = guest.wish("x", 1);
        change(&mut wish);
        wish
    };
    let cases = [
        (with(&|w| w["owner"]["start_time"] = 1.into()), 403, "not_on_this_host"),
        (with(&|w| w["owner"]["pid_ns"] = "pid:[1]".into()), 403, "not_on_this_host"),
        (with(&|w| w["parts"][0]["memory"] = "99GiB".into()), 507, "lease_never_fits"),
        (with(&|w| w["parts"][0]["device"] = "cuda:7".into()), 409, "device_not_available"),
        (with(&|w| w["parts"][0]["device"] = "auto".into()), 400, "invalid_request"),
        (with(&|w| w["parts"][0]["memory"] = 0.into()), 400, "invalid_request"),
        (with(&|w| w["parts"] = json!([])), 400, "invalid_request"),
        (with(&|w| w["any"] = json!({ "count": 1, "memory": "1GiB" })), 400, "invalid_request"),
        (with(&|w| w["request_id"] = "".into()), 400, "invalid_request"),
        (with(&|w| w["request_id"] = "a\x1b[2J".into()), 400, "invalid_request"),
        (with(&|w| w["owner"]["label"] = "\x1b]0;title\x07".into()), 400, "invalid_request"),
        (with(&|w| w["owner"]["label"] = "\u{202e}gpj.exe".into()), 400, "invalid_request"),
        (with(&|w| w["owner"]["label"] = "x".repeat(129).into()), 400, "invalid_request"),
        (with(&|w| w["surprise"] = 1.into()), 400, "invalid_request"),
    ];
    for (wish, status, code) in cases {
        let answer = guest.ask(&wish).await;
        assert_eq!((answer.status.as_u16(), answer.error_code()), (status, code.to_owned()), "{wish}: {answer:?}");
    }
    let none = json!({ "id": "lease-1", "token": 1 });
    assert_eq!(guest.renew(&none).await["lost"], json!(["lease-1"]));
    assert_eq!(guest.release(&none).await.error_code(), "lease_lost");
    assert_eq!(guest.send(Method::DELETE, "/lease-1", &json!({})).await.error_code(), "lease_not_found");
    assert_eq!(boss.client().get("/api/v1/leases/lease-1").await.error_code(), "lease_not_found");
    let cancel = json!({ "request_id": "none", "owner": guest.owner("x") });
    assert_eq!(guest.send(Method::DELETE, "", &cancel).await.json(), json!({ "cancelled": true }));
    boss.finish().await;
}

#[tokio::test]
async fn an_error_of_the_command_line_does_not_steer_the_terminal() {
    let boss = Sandbox::new().start().await;
    let name = "\x1b[2J\u{9b}31m\u{202e}";
    for arguments in [&["plan", name][..], &["run", name, "hello"], &["show", name], &["lease", "show", name]] {
        let mut command = Command::new(binary("model-boss"));
        command.args(arguments).env_remove("MODEL_BOSS_REDIS_URL");
        let output = command.env("MODEL_BOSS_URL", format!("http://{}", boss.client().address())).output().unwrap();
        let words = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && words.contains("\\u001b[2J"), "{words:?}");
        assert!(!words.contains(['\x1b', '\u{9b}', '\u{202e}']), "{words:?}");
    }
    // A command line that cannot be read is repeated too.
    for arguments in [&[name][..], &["lease", "run", "--vram", name, "--", "true"], &["plan", "a", name]] {
        let output = Command::new(binary("model-boss")).args(arguments).output().unwrap();
        let words = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && words.contains("\\u202e"), "{words:?}");
        assert!(!words.contains(['\x1b', '\u{9b}', '\u{202e}']), "{words:?}");
    }
    let written = boss.output().text();
    assert!(!written.contains(['\x1b', '\u{9b}', '\u{202e}']), "{written:?}");
    boss.finish().await;
}

#[tokio::test]
async fn no_client_holds_memory_with_a_priority_that_its_rule_does_not_allow() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(ONE);
    std::fs::write(sandbox.path("tasks.yaml"), "clients: {default: {max_priority: 4}}\n").unwrap();
    let boss = sandbox.start().await;
    let guest = Guest::new(&boss);
    for (asked, got) in [(0, 4), (4, 4), (7, 7)] {
        let mut wish = guest.wish(&format!("of-{asked}"), 1);
        wish["priority"] = json!(asked);
        let lease = guest.granted(&wish).await;
        assert_eq!(lease["priority"], got, "{lease}");
        guest.send(Method::DELETE, &path(&lease, ""), &json!({ "token": lease["token"] })).await;
    }
    boss.finish().await;
}

#[tokio::test]
async fn who_reads_the_list_learns_nothing_that_changes_a_lease() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(ONE);
    let boss = sandbox.start().await;
    let guest = Guest::new(&boss);
    let lease = guest.granted(&guest.wish("train.py", 2)).await;
    let job = Job::start();
    assert!(guest.attach(&lease, job.0.id()).await.status.is_success());

    let mut shown = String::new();
    for route in ["leases", "health", "devices", "decisions", "stats", "queue"] {
        shown += &boss.read(&format!("/api/v1/{route}")).await.to_string();
    }
    shown += &boss.read(&format!("/api/v1/leases{}", path(&lease, ""))).await.to_string();
    shown += &boss.output().text();
    let secret = lease["token"].to_string();
    assert!(!shown.contains(secret.trim_matches('"')), "{shown}");

    // The attacker tries forms of the id, and the token of a lease of its own.
    let own = guest.granted(&guest.wish("own.py", 1)).await;
    let name = lease["id"].as_str().unwrap().strip_prefix("lease-").unwrap();
    let mut guesses =
        vec![Value::Null, json!(0), json!(u64::MAX), json!("0".repeat(32)), json!(name), own["token"].clone()];
    guesses.extend(name.parse::<u64>().ok().map(Value::from));
    guesses.extend(u64::from_str_radix(name, 16).ok().map(Value::from));
    guesses.push(json!(format!("{name:0<32}")));
    for guess in guesses {
        let forged = json!({ "id": lease["id"], "token": guess });
        let shrink = json!({ "token": guess, "parts": [{ "device": "cuda:0", "memory": 1 }] });
        let refused = |answer: &Answer| [400, 409].contains(&answer.status.as_u16());
        let answer = guest.send(Method::PUT, &path(&lease, ""), &shrink).await;
        assert!(refused(&answer), "{guess}: {answer:?}");
        let answer = guest.attach(&forged, std::process::id()).await;
        assert!(refused(&answer), "{guess}: {answer:?}");
        let answer = guest.release(&forged).await;
        assert!(refused(&answer), "{guess}: {answer:?}");
        let record = json!({
            "token": guess, "request_id": "made up", "owner": guest.owner("x"), "priority": 7,
            "parts": [{ "device": "cuda:0", "memory": "2GiB" }],
            "processes": [{ "pid": guest.owner.pid, "start_time": guest.owner.start_time, "pid_ns": guest.owner.pid_ns }],
        });
        let answer = guest.send(Method::POST, &path(&lease, "/reassert"), &record).await;
        assert!(refused(&answer), "{guess}: {answer:?}");
    }
    // The same request id in the name of another process is another request.
    let mut again = guest.wish("train.py", 1);
    let named = process(job.0.id()).unwrap();
    (again["owner"]["pid"], again["owner"]["start_time"]) = (named.pid.into(), named.start_time.into());
    let other = guest.ask(&again).await.json()["lease"].clone();
    assert!(other["id"] != lease["id"] && other["token"] != lease["token"], "{other}");

    let kept = boss.read(&format!("/api/v1/leases{}", path(&lease, ""))).await;
    assert_eq!((&kept["lease"]["parts"][0]["bytes"], &kept["lease"]["state"]), (&json!(2 * GIB), &json!("active")));
    for lease in [&own, &other] {
        assert_eq!(guest.release(lease).await.json()["released"], true);
    }
    job.end();
    assert_eq!(guest.release(&lease).await.json()["released"], true);
    none_is_left(&boss).await;
    boss.finish().await;
}

#[tokio::test]
async fn a_process_that_never_ends_or_is_ours_cannot_hold_memory() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(ONE);
    let mut alpha = sandbox.fake_model_with("alpha", "vram = \"1GiB\"\ndevice = \"cuda:0\"", Behaviour::default());
    let boss = sandbox.start().await;
    let guest = Guest::new(&boss);
    let asked = boss.ask(question("alpha", "?"));
    let worker = alpha.worker().await.pid;
    assert!(asked.await.unwrap().status.is_success());
    let lease = guest.granted(&guest.wish("mine", 1)).await;
    for pid in [1, boss.pid(), worker] {
        let mut wish = guest.wish(&format!("of-{pid}"), 20);
        let named = process(pid).unwrap();
        (wish["owner"]["pid"], wish["owner"]["start_time"]) = (named.pid.into(), named.start_time.into());
        let refused = guest.ask(&wish).await;
        assert_eq!((refused.status.as_u16(), refused.error_code()), (403, "not_your_process".to_owned()), "{pid}");
        let refused = guest.attach(&lease, pid).await;
        assert_eq!((refused.status.as_u16(), refused.error_code()), (403, "not_your_process".to_owned()), "{pid}");
        let process = json!({ "pid": pid, "start_time": named.start_time, "pid_ns": named.pid_ns });
        let record = json!({
            "token": 9, "request_id": "made up", "owner": guest.owner("x"), "priority": 7,
            "parts": [{ "device": "cuda:0", "memory": "20GiB" }], "processes": [process],
        });
        let refused = guest.send(Method::POST, "/lease-9/reassert", &record).await;
        assert_eq!((refused.status.as_u16(), refused.error_code()), (403, "not_your_process".to_owned()), "{pid}");
    }
    assert_eq!(guest.release(&lease).await.json()["released"], true);
    let left = boss.read("/api/v1/leases").await;
    assert!(left["leases"].as_array().unwrap().iter().all(|lease| lease["label"] == "alpha"), "{left}");
    assert_eq!(left["waiters"], json!([]));
    boss.finish().await;
}

#[tokio::test]
async fn another_user_holds_no_memory_with_our_processes_and_forces_nothing() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(ONE);
    let boss = sandbox.start().await;
    let guest = Guest::new(&boss);
    let lease = guest.granted(&guest.wish("mine", 1)).await;
    let stranger = |method, path: &str, body: &Value| {
        let (status, answer) = as_another_user(&boss, method, path, body)?;
        Some((status, answer["error"]["code"].as_str().unwrap_or_default().to_owned()))
    };
    let refused = |code: &str| Some((403, code.to_owned()));
    if let Some(answer) = stranger("POST", "", &guest.wish("theirs", 20)) {
        assert_eq!(Some(answer), refused("not_your_process"));
        let attach = json!({ "token": lease["token"], "pids": [std::process::id()] });
        assert_eq!(stranger("POST", &path(&lease, "/attach"), &attach), refused("not_your_process"));
        let cancel = json!({ "request_id": guest.wish("mine", 1)["request_id"], "owner": guest.owner("mine") });
        assert_eq!(stranger("DELETE", "", &cancel), refused("not_your_process"));
        let force = json!({ "force": true });
        assert_eq!(stranger("DELETE", &path(&lease, ""), &force), refused("insufficient_scope"));
    }
    assert_eq!(guest.release(&lease).await.json()["released"], true);
    none_is_left(&boss).await;
    boss.finish().await;
}

#[tokio::test]
async fn an_operator_forces_a_lease_whose_processes_do_not_end_and_the_ledger_keeps_that() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(ONE);
    let boss = sandbox.start().await;
    let guest = Guest::new(&boss);
    let lease = guest.granted(&guest.wish("stuck.py", 18)).await;
    let job = Job::start();
    assert!(guest.attach(&lease, job.0.id()).await.status.is_success());
    let release = |options: &[&str]| {
        let mut command = Command::new(binary("model-boss"));
        command.args(["lease", "release"]).args(options).arg(lease["id"].as_str().unwrap());
        command.env_remove("MODEL_BOSS_REDIS_URL");
        command.env("MODEL_BOSS_URL", format!("http://{}", boss.client().address())).output().unwrap()
    };
    let words = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let refused = release(&[]);
    assert!(!refused.status.success() && words(&refused).contains("--force"), "{}", words(&refused));
    let forced = release(&["--force"]);
    assert!(forced.status.success() && words(&forced).contains("warning: "), "{}", words(&forced));
    assert!(words(&forced).contains("18.0 GiB on cuda:0"), "{}", words(&forced));
    assert!(words(&forced).contains(&job.0.id().to_string()), "{}", words(&forced));
    let list = boss.read("/api/v1/leases").await;
    assert_eq!((&list["leases"], &list["forced"][0]["id"]), (&json!([]), &lease["id"]), "{list}");
    assert_eq!((&list["forced"][0]["label"], &list["forced"][0]["pids"]), (&json!("stuck.py"), &json!([job.0.id()])));
    // The holder learns that the lease is lost; other requests get the memory.
    assert_eq!(guest.renew(&lease).await["lost"], json!([lease["id"]]));
    let next = guest.granted(&guest.wish("next.py", 18)).await;
    assert_eq!(guest.release(&next).await.json()["released"], true);
    job.end();
    boss.finish().await;
}

#[tokio::test]
async fn memory_that_another_program_holds_on_the_host_is_its_own_and_not_foreign_as_well() {
    let sandbox = Sandbox::new();
    let boss = sandbox.start().await;
    let guest = Guest::new(&boss);
    let mut wish = guest.wish("train.py", 1);
    wish["parts"] = json!([{ "device": "cpu", "memory": "512MiB" }]);
    let lease = guest.granted(&wish).await;
    // A child of the attached process, which leads no session, fills the leased memory.
    let script = "read go; (filled=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#filled}; read never); true";
    let mut job = Command::new("sh");
    let mut job = Job(job.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    assert!(guest.attach(&lease, job.0.id()).await.status.is_success());
    writeln!(job.0.stdin.as_ref().unwrap(), "go").unwrap();
    let mut said = String::new();
    BufReader::new(job.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said.trim(), "200000000");
    let seen = async || {
        let shown = boss.read(&format!("/api/v1/leases{}", path(&lease, ""))).await;
        guest.renew(&lease).await;
        shown["lease"]["parts"][0]["measured"].as_u64().filter(|bytes| *bytes >= 200_000_000)
    };
    until(PATIENCE, "what the program uses is seen to be its own", seen).await;
    job.end();
    assert_eq!(guest.release(&lease).await.json()["released"], true);
    none_is_left(&boss).await;
    boss.finish().await;
}

#[tokio::test]
async fn le_3_a_request_waits_for_a_training_lease_and_is_told_so() {
    let mut sandbox = Sandbox::new().with_config("sse.first_comment = \"50ms\"");
    sandbox.simulate(ONE);
    let manifest = "vram = \"10GiB\"\ndevice = \"cuda:0\"";
    let _alpha = sandbox.fake_model_with("alpha", manifest, Behaviour::default());
    let boss = sandbox.start().await;
    let guest = Guest::new(&boss);
    let lease = guest.granted(&guest.wish("train.py", 18)).await;
    let job = Job::start();
    assert!(guest.attach(&lease, job.0.id()).await.status.is_success());

    let mut stream = boss.chat_streamed("alpha", "?").await;
    let id = lease["id"].as_str().unwrap();
    let held = format!("held by {id} (train.py): 18.0 GiB, priority 7");
    let (wait, message) = wait_of(&boss, "capacity").await;
    assert!(message.contains(&held), "{message}");
    assert_eq!((&wait["leases"][0]["lease"], &wait["leases"][0]["bytes"]), (&json!(id), &json!(18 * GIB)));
    let plan = boss.client().post("/api/v1/plan", &json!({ "model": "alpha", "priority": 0 })).await;
    assert!(plan.status.is_success(), "{plan:?}");
    assert!(plan.json()["message"].as_str().unwrap().contains(&held), "{plan:?}");
    let comment = async {
        loop {
            match stream.next().await.expect("a comment before the end") {
                Event::Comment(text) if text.contains("held by") => return text,
                Event::Comment(_) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    assert!(comment.await.contains("train.py"));
    let devices = boss.read("/api/v1/devices").await;
    let gpu = devices["devices"].as_array().unwrap().iter().find(|device| device["id"] == "cuda:0").unwrap();
    assert_eq!(gpu["leased"], 18 * GIB);
    // The request has a place in the ledger's queue, so that later requests do not overtake it.
    let later = guest.ask(&guest.wish("later.py", 4)).await;
    assert_eq!(later.status, 202);
    assert!(later.json()["waiting"]["reason"].as_str().unwrap().contains("alpha"), "{later:?}");
    let cancel = json!({ "request_id": guest.wish("later.py", 4)["request_id"], "owner": guest.owner("later.py") });
    assert!(guest.send(Method::DELETE, "", &cancel).await.status.is_success());

    // A job that is not preemptible keeps its memory.
    assert_eq!(guest.renew(&lease).await["leases"][0]["revoke"], Value::Null);
    job.end();
    assert_eq!(guest.release(&lease).await.json()["released"], true);
    assert!(stream.into_answer().await.status.is_success());
    boss.finish().await;
}

#[tokio::test]
async fn le_3_a_preemptible_job_is_asked_and_the_client_is_told_whom_it_waits_for() {
    preemptible(Sandbox::new()).await;
}

#[tokio::test]
async fn le_3_the_same_over_redis_where_the_ledger_is_one_readable_document() {
    let Some(server) = RedisServer::start() else { return };
    preemptible(Sandbox::new().with_config(&format!("redis_url = \"{}\"", server.url()))).await;
    let ledger = server.ledger().unwrap();
    assert_eq!(ledger["leases"], json!({}));
    assert_eq!(ledger["devices"]["GPU-played-0"]["name"], "cuda:0");
}

async fn preemptible(mut sandbox: Sandbox) {
    sandbox.simulate(ONE);
    let manifest = "vram = \"10GiB\"\ndevice = \"cuda:0\"";
    let _alpha = sandbox.fake_model_with("alpha", manifest, Behaviour::default());
    let boss = sandbox.start().await;
    let guest = Guest::new(&boss);
    let mut wish = guest.wish("train.py", 18);
    wish["preemptible"] = true.into();
    let lease = guest.granted(&wish).await;
    let job = Job::start();
    assert!(guest.attach(&lease, job.0.id()).await.status.is_success());

    // The request has the job's own priority, so no lease is revoked.
    let equal = boss.ask(at(7, "alpha"));
    wait_of(&boss, "capacity").await;
    equal.abort();
    let asked = boss.ask(at(2, "alpha"));
    let (wait, message) = wait_of(&boss, "lease_revoking").await;
    assert!(message.contains("train.py"), "{message}");
    assert_eq!(wait["asked"][0]["lease"], lease["id"]);
    let revoke = async || {
        let renewed = guest.renew(&lease).await;
        let revoke = renewed["leases"][0]["revoke"].clone();
        (!revoke.is_null()).then_some(revoke)
    };
    let revoke = until(PATIENCE, "the job is asked", revoke).await;
    assert_eq!(revoke["by"], "alpha");
    assert!(revoke["grace_left_ms"].as_u64().is_some_and(|left| left > 50_000 && left <= 60_000), "{revoke}");
    assert!(!is_loaded(&boss, "alpha").await, "nothing is taken, only asked for");
    job.end();
    assert_eq!(guest.release(&lease).await.json()["released"], true);
    assert!(asked.await.unwrap().status.is_success());
    let decisions = boss.read("/api/v1/decisions").await;
    assert!(decisions.to_string().contains("revoke"), "{decisions}");
    boss.finish().await;
}

#[tokio::test]
async fn le_3_idle_models_leave_for_training_that_is_more_important_and_busy_ones_do_not() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(ONE);
    let manifest = "vram = \"10GiB\"\ndevice = \"cuda:0\"";
    let mut busy =
        sandbox.fake_model_with("busy", manifest, Behaviour { hold_after_tokens: Some(0), ..Behaviour::default() });
    let _idle = sandbox.fake_model_with("idle", manifest, Behaviour::default());
    let boss = sandbox.start().await;
    let guest = Guest::new(&boss);
    assert!(boss.ask(at(9, "idle")).await.unwrap().status.is_success());
    let running = boss.ask(at(9, "busy"));
    let mut worker = busy.worker().await;
    worker.held().await;
    let waits = guest.ask(&guest.wish("large.py", 20)).await;
    assert_eq!(waits.status, 202, "{waits:?}");
    assert!(is_loaded(&boss, "idle").await, "nobody leaves where that is not enough");
    let cancel = json!({ "request_id": guest.wish("large.py", 20)["request_id"], "owner": guest.owner("large.py") });
    assert!(guest.send(Method::DELETE, "", &cancel).await.status.is_success());

    let lease = guest.granted(&guest.wish("small.py", 8)).await;
    assert!(!is_loaded(&boss, "idle").await);
    assert!(is_loaded(&boss, "busy").await);
    let decisions = boss.read("/api/v1/decisions").await.to_string();
    assert!(decisions.contains("'small.py' (priority 7) waits for"), "{decisions}");
    worker.decode();
    assert!(running.await.unwrap().status.is_success());
    assert_eq!(guest.release(&lease).await.json()["released"], true);
    boss.finish().await;
}

#[tokio::test]
async fn le_3_training_that_asks_gets_the_memory_of_a_busy_model_when_its_requests_have_ended() {
    let mut sandbox = Sandbox::new().with_config("leases.heartbeat = \"100ms\"");
    sandbox.simulate(ONE);
    let held = Behaviour { hold_after_tokens: Some(0), ..Behaviour::default() };
    let mut alpha = sandbox.fake_model_with("alpha", "vram = \"20GiB\"\ndevice = \"cuda:0\"", held);
    let boss = sandbox.start().await;
    let guest = Guest::new(&boss);
    let running = boss.ask(at(9, "alpha"));
    let mut worker = alpha.worker().await;
    worker.held().await;
    let mut wish = guest.wish("train.py", 18);
    (wish["preempt"], wish["priority"]) = (true.into(), 3.into());
    // The model was loaded a moment ago, and is not evicted during its hold.
    let draining = async || {
        assert_eq!(guest.ask(&wish).await.status, 202);
        let slots = boss.read("/api/v1/slots").await;
        (slots["slots"][0]["leaving"]["revoked"]["by"] == "train.py").then_some(())
    };
    until(PATIENCE, "the model drains", draining).await;
    worker.decode();
    assert!(running.await.unwrap().status.is_success(), "what runs is ended, not cut");
    let lease = guest.granted(&wish).await;
    assert!(!is_loaded(&boss, "alpha").await);
    assert_eq!(guest.release(&lease).await.json()["released"], true);
    boss.finish().await;
}

#[tokio::test]
async fn le_4_a_lease_outlives_its_coordinator_and_ends_with_its_processes() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(ONE);
    let boss = sandbox.start().await;
    let first = Guest::new(&boss);
    let lease = first.granted(&first.wish("train.py", 18)).await;
    let job = Job::start();
    let born = process(job.0.id()).unwrap();
    assert!(Guest::new(&boss).attach(&lease, born.pid).await.status.is_success());
    boss.kill().await;
    let boss = sandbox.start().await;
    let guest = Guest::new(&boss);
    let renewed = guest.renew(&lease).await;
    assert_eq!(renewed["leases"][0]["parts"][0]["bytes"], 18 * GIB, "{renewed}");
    assert_eq!(guest.ask(&guest.wish("other.py", 10)).await.status, 202);
    let cancel = json!({ "request_id": guest.wish("other.py", 10)["request_id"], "owner": guest.owner("other.py") });
    assert!(guest.send(Method::DELETE, "", &cancel).await.status.is_success());
    job.end();
    assert_eq!(guest.release(&lease).await.json()["released"], true);
    boss.finish().await;
}
