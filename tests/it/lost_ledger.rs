//! LE-4: the file with the leases is deleted, emptied, replaced by an older copy, or differs from another
//! coordinator's. A living program keeps its lease, and its memory is not granted to others.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use http::{Method, StatusCode};
use model_boss_lease_store::this_process;
use model_boss_tests::{Behaviour, Boss, Launch, PATIENCE, Sandbox, binary, until};
use serde_json::{Value, json};

const ONE: &str = "[cpu]\nmemory = \"8GiB\"\n[[gpu]]\nmemory = \"24GiB\"\nreserve = \"0B\"\n";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    Deleted,
    DeletedUnderARunningCoordinator,
    Emptied,
    ReplacedByAnOlderCopy,
    StartedWithAnotherFolder,
}

/// A coordinator on this port, with this state folder.
fn launch(sandbox: &Sandbox, port: u16, state: &Path) -> Launch {
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    let mut arguments: Vec<OsString> = launch.command.get_args().map(OsString::from).collect();
    let mut set = |name: &str, value: OsString| {
        let place = arguments.iter().position(|argument| argument == name).unwrap() + 1;
        arguments[place] = value;
    };
    set("--port", port.to_string().into());
    set("--state-dir", state.into());
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
    launch
}

/// A program that runs under `lease run` until its input ends.
struct Job {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Job {
    fn start(boss: &Boss) -> Self {
        let mut command = Command::new(binary("model-boss"));
        command.args(["lease", "run", "--vram", "20GiB", "--label", "job", "--", "sh", "-c"]);
        command
            .arg("echo up; read line; echo done")
            .env("MODEL_BOSS_URL", format!("http://{}", boss.client().address()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut job = Self { output: BufReader::new(child.stdout.take().unwrap()), child };
        assert_eq!(job.line(), "up");
        job
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Ends the job, which must have lived until now.
    fn end(mut self, loss: Loss) {
        drop(self.child.stdin.take());
        let done = self.line();
        let mut words = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut words).unwrap();
        assert_eq!((done.as_str(), self.child.wait().unwrap().code()), ("done", Some(0)), "{loss:?}: {words}");
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // The program may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn jobs(boss: &Boss) -> Vec<Value> {
    let listed = boss.read("/api/v1/leases").await;
    listed["leases"].as_array().unwrap().iter().filter(|lease| lease["label"] == "job").cloned().collect()
}

/// Requests more memory than the job leaves free.
async fn ask(boss: &Boss) -> StatusCode {
    let owner = this_process().unwrap();
    let body = json!({
        "request_id": format!("other-{}", owner.pid),
        "owner": { "pid": owner.pid, "start_time": owner.start_time, "pid_ns": owner.pid_ns, "label": "other" },
        "parts": [{ "device": "cuda:0", "memory": "5GiB" }],
    });
    let client = boss.client();
    client.send(client.request(Method::POST, "/api/v1/leases", body.to_string())).await.status
}

async fn a_job_lives_through(loss: Loss) {
    let mut sandbox = Sandbox::new().with_config("leases.term = \"2s\"\nleases.heartbeat = \"300ms\"\n");
    sandbox.simulate(ONE);
    let state = sandbox.path("state");
    let file: PathBuf = state.join("simulation/leases.redb");
    sandbox.start().await.finish().await;
    let older = std::fs::read(&file).unwrap();

    let mut boss = launch(&sandbox, 0, &state).start().await;
    let port = boss.client().address().port();
    let job = Job::start(&boss);
    assert_eq!(jobs(&boss).await.len(), 1);
    let restarted_with = match loss {
        Loss::StartedWithAnotherFolder => sandbox.path("another"),
        _ => state.clone(),
    };
    if loss == Loss::DeletedUnderARunningCoordinator {
        std::fs::remove_file(&file).unwrap();
    } else {
        boss.kill().await;
        match loss {
            Loss::Deleted => std::fs::remove_file(&file).unwrap(),
            Loss::Emptied => std::fs::write(&file, "").unwrap(),
            Loss::ReplacedByAnOlderCopy => std::fs::write(&file, &older).unwrap(),
            Loss::DeletedUnderARunningCoordinator | Loss::StartedWithAnotherFolder => {}
        }
        boss = launch(&sandbox, port, &restarted_with).start().await;
        let said = "the lease store may have lost records";
        boss.output().line("says that records may be lost", |line| line.contains(said)).await;
    }
    // The job states its lease again; until then no lease is granted.
    let stated = async || {
        let status = ask(&boss).await;
        assert_ne!(status, StatusCode::CREATED, "{loss:?}: the job's memory was given away");
        (jobs(&boss).await.len() == 1 && status == StatusCode::ACCEPTED).then_some(())
    };
    until(PATIENCE, "the job is in the ledger again", stated).await;
    let open = async || (boss.client().get("/ready").await.json()["status"] == "ok").then_some(());
    until(PATIENCE, "the window closes", open).await;
    assert_eq!((jobs(&boss).await.len(), ask(&boss).await), (1, StatusCode::ACCEPTED), "{loss:?}");
    job.end(loss);
    until(PATIENCE, "its memory is given back", async || jobs(&boss).await.is_empty().then_some(())).await;

    // A coordinator that lost no lease does not wait.
    boss.kill().await;
    let boss = launch(&sandbox, port, &restarted_with).start().await;
    let ready = boss.client().get("/ready").await;
    assert_eq!(ready.json()["status"], "ok", "{loss:?}: a restart that loses nothing opens no window");
    boss.kill().await;
}

#[tokio::test]
async fn a_job_lives_through_a_deleted_ledger() {
    a_job_lives_through(Loss::Deleted).await;
}

#[tokio::test]
async fn a_job_lives_through_a_ledger_deleted_under_a_running_coordinator() {
    a_job_lives_through(Loss::DeletedUnderARunningCoordinator).await;
}

#[tokio::test]
async fn a_job_lives_through_an_emptied_ledger() {
    a_job_lives_through(Loss::Emptied).await;
}

#[tokio::test]
async fn a_job_lives_through_a_ledger_replaced_by_an_older_copy() {
    a_job_lives_through(Loss::ReplacedByAnOlderCopy).await;
}

#[tokio::test]
async fn a_job_lives_through_a_coordinator_started_with_another_folder() {
    a_job_lives_through(Loss::StartedWithAnotherFolder).await;
}

#[tokio::test]
async fn a_lost_ledger_whose_holders_are_all_gone_is_no_loss() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(ONE);
    let _alpha = sandbox.fake_model_with("alpha", "vram = \"4GiB\"\ndevice = \"cuda:0\"", Behaviour::default());
    let boss = sandbox.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    boss.kill().await;
    let boss = launch(&sandbox, 0, &sandbox.path("another")).start().await;
    assert_eq!(boss.client().get("/ready").await.json()["status"], "ok");
    assert!(boss.chat("alpha", "?").await.status.is_success());
    boss.kill().await;
}
