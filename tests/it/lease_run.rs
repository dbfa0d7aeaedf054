//! LE-2 and LE-3: `model-boss lease run` at a coordinator, over HTTP and without Redis.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use model_boss_tests::{Boss, Launch, PATIENCE, Sandbox, binary, until};
use serde_json::Value;

const TWO: &str = "[cpu]\nmemory = \"8GiB\"\n[[gpu]]\nmemory = \"24GiB\"\ncount = 2\nreserve = \"0B\"\n";

/// A sandbox that simulates two GPUs.
fn sandbox() -> Sandbox {
    let mut sandbox = Sandbox::new().with_config("leases.term = \"3s\"\nleases.heartbeat = \"500ms\"\n");
    sandbox.simulate(TWO);
    sandbox
}

/// A coordinator on this port; 0 means any.
fn launch(sandbox: &Sandbox, port: u16) -> Launch {
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    if port != 0 {
        let mut arguments: Vec<OsString> = launch.command.get_args().map(OsString::from).collect();
        let place = arguments.iter().position(|argument| argument == "--port").unwrap() + 1;
        arguments[place] = port.to_string().into();
        let mut command = Command::new(launch.command.get_program());
        command.args(arguments).current_dir(launch.command.get_current_dir().unwrap());
        for (name, value) in launch.command.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        launch.command = command;
    }
    launch
}

/// `model-boss lease …` for this coordinator.
fn lease(boss: &Boss, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("model-boss"));
    command.arg("lease").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MODEL_BOSS_")) {
        command.env_remove(name);
    }
    command.env("MODEL_BOSS_URL", format!("http://{}", boss.client().address()));
    command
}

fn run(boss: &Boss, options: &[&str], script: &str) -> Command {
    lease(boss, &[&["run"], options, &["--", "sh", "-c", script]].concat())
}

/// A running program and its output.
struct Job {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Job {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Closes the program's input, and waits; returns its exit code and its standard error.
    fn end(mut self) -> (Option<i32>, String) {
        drop(self.child.stdin.take());
        let mut words = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut words).unwrap();
        (self.child.wait().unwrap().code(), words)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // The program may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn leases(boss: &Boss) -> Vec<Value> {
    boss.read("/api/v1/leases").await["leases"].as_array().unwrap().clone()
}

#[tokio::test]
async fn le_2_a_program_runs_with_its_gpus_and_its_exit_code_is_passed_on() {
    let sandbox = sandbox();
    let boss = launch(&sandbox, 0).start().await;
    let script = "echo \"$MODEL_BOSS_LEASE $CUDA_VISIBLE_DEVICES\"; read never; exit 7";
    let mut job = Job::start(run(&boss, &["--vram", "18GiB", "--gpus", "2", "--label", "train", "-v"], script));
    let line = job.line();
    let (id, gpus) = line.split_once(' ').unwrap();
    let held = leases(&boss).await;
    assert_eq!((held[0]["id"].as_str(), held[0]["state"].as_str()), (Some(id), Some("active")));
    let uuids: Vec<&str> = held[0]["parts"].as_array().unwrap().iter().map(|p| p["uuid"].as_str().unwrap()).collect();
    assert_eq!(gpus, uuids.join(","));
    let listed = lease(&boss, &["list", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["source"], format!("the coordinator at http://{}", boss.client().address()));
    assert_eq!(listed["leases"][0]["id"], id);
    let refused = lease(&boss, &["release", id]).output().unwrap();
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("end its program first (holder"), "{words}");
    let (code, words) = job.end();
    assert_eq!(code, Some(7), "{words}");
    assert!(words.contains("asks the coordinator at") && words.contains("holds 18.0 GiB on"), "{words}");
    assert!(leases(&boss).await.is_empty(), "the memory is given back before it ends");
    let never = run(&boss, &["--vram", "100GiB"], "true").output().unwrap();
    let words = String::from_utf8_lossy(&never.stderr).into_owned();
    assert!(words.contains("it can never fit"), "{words}");
    boss.finish().await;
}

#[tokio::test]
async fn le_3_it_waits_saying_why_and_one_that_allows_it_is_asked_to_make_way() {
    let sandbox = sandbox();
    let boss = launch(&sandbox, 0).start().await;
    let script = "trap 'echo saved; exit 9' USR1; echo up; while :; do sleep 0.05; done";
    let soft = ["--vram", "20GiB", "--gpus", "2", "--on-revoke", "USR1", "--min-hold", "0s", "--label", "soft"];
    let mut soft = Job::start(run(&boss, &soft, script));
    assert_eq!(soft.line(), "up");
    let late = run(&boss, &["--vram", "20GiB", "--wait", "200ms"], "true").output().unwrap();
    let words = String::from_utf8_lossy(&late.stderr).into_owned();
    assert!(words.contains("1 in the queue: ") && words.contains("soft"), "{words}");
    assert!(words.contains("did not come free within"), "{words}");
    assert_eq!(boss.read("/api/v1/leases").await["waiters"], serde_json::json!([]), "it left the queue");
    let urgent = ["--vram", "20GiB", "--preempt", "--priority", "2", "--label", "urgent"];
    let urgent = run(&boss, &urgent, "exit 4").output().unwrap();
    let words = String::from_utf8_lossy(&urgent.stderr).into_owned();
    assert_eq!(urgent.status.code(), Some(4), "{words}");
    assert!(words.contains("asked: soft has"), "{words}");
    assert_eq!(soft.line(), "saved");
    assert_eq!(soft.end().0, Some(9));
    boss.finish().await;
}

#[tokio::test]
async fn le_4_a_job_goes_on_while_its_coordinator_is_killed_and_started_again() {
    let sandbox = sandbox();
    let boss = launch(&sandbox, 0).start().await;
    let mut job = Job::start(run(&boss, &["--vram", "18GiB", "--gpus", "2"], "echo up; read line; exit 3"));
    assert_eq!(job.line(), "up");
    let before = leases(&boss).await.remove(0);
    let port = boss.client().address().port();
    boss.kill().await;
    let boss = launch(&sandbox, port).start().await;
    let after = leases(&boss).await.remove(0);
    assert_eq!((&after["id"], &after["pids"]), (&before["id"], &before["pids"]), "it is counted from the first moment");
    // The remaining term of a lease only increases when it is renewed.
    let mut left = u64::MAX;
    let renewed = async || {
        let before = std::mem::replace(&mut left, leases(&boss).await[0]["expires_in_ms"].as_u64().unwrap());
        (left > before).then_some(())
    };
    until(PATIENCE, "the job renews its lease", renewed).await;
    let (code, words) = job.end();
    assert_eq!(code, Some(3), "{words}");
    assert!(leases(&boss).await.is_empty());
    boss.finish().await;
}
