//! The coordinator under test: a real process with its output and its end, and checks that no process or lease of it
//! stays.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model_boss_lease_store::{EmbeddedStore, LedgerStore};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::client::{Answer, Client, Streamed};
use crate::processes::{MARK_VARIABLE, Processes};
use crate::wait::{PATIENCE, until, within};

/// The longest life of processes after their coordinator or their lease was killed.
pub const GONE_WITHIN: Duration = Duration::from_secs(2);

/// A coordinator that is about to be started.
pub struct Launch {
    /// The command line and environment; tests may add to them.
    pub command: Command,
    mark: String,
    folder: Arc<TempDir>,
}

impl Launch {
    pub(crate) fn new(binary: &Path, mark: &str, folder: Arc<TempDir>) -> Self {
        let mut command = Command::new(binary);
        command.env(MARK_VARIABLE, mark);
        // Settings in the environment of the test run are for another coordinator.
        for (name, _) in
            std::env::vars().filter(|(name, _)| name.starts_with("MODEL_BOSS_") || name.starts_with("OTEL_"))
        {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { command, mark: mark.to_owned(), folder }
    }

    /// Starts the coordinator with this file as its standard error.
    pub async fn start_with_log(mut self, log: std::fs::File) -> Boss {
        self.command.stderr(log);
        self.start().await
    }

    /// Runs a script in a shell first, for example to set limits; the shell then becomes the coordinator.
    #[must_use]
    pub fn after(mut self, script: &str) -> Self {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("{script}; exec \"$0\" \"$@\""));
        shell.arg(self.command.get_program()).args(self.command.get_args());
        if let Some(folder) = self.command.get_current_dir() {
            shell.current_dir(folder);
        }
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.command = shell;
        self
    }

    /// Starts the coordinator and waits until it prints its address.
    pub async fn start(mut self) -> Boss {
        let mut child = self.command.spawn().unwrap_or_else(|e| panic!("cannot start {:?}: {e}", self.command));
        let output = Output::default();
        output.collect(child.stdout.take().expect("stdout is a pipe"));
        // Standard error is a pipe unless the test gave a file.
        if let Some(stderr) = child.stderr.take() {
            output.collect(stderr);
        }
        let mut boss = Boss {
            child,
            output,
            client: Client::new(SocketAddr::from(([127, 0, 0, 1], 0))),
            mark: self.mark,
            folder: self.folder,
            ended: false,
        };
        let line = boss.output.line("says where it listens", |line| address_in(line).is_some()).await;
        boss.client = Client::new(address_in(&line).expect("this line was chosen for its address"));
        boss
    }

    /// Starts the coordinator and waits for its end, for command lines that must be refused.
    pub async fn end(mut self) -> (ExitStatus, String) {
        let mut child = self.command.spawn().unwrap_or_else(|e| panic!("cannot start {:?}: {e}", self.command));
        let output = Output::default();
        output.collect(child.stdout.take().expect("stdout is a pipe"));
        output.collect(child.stderr.take().expect("stderr is a pipe"));
        let status = exit_of(&mut child, PATIENCE).await;
        output.closed().await;
        (status, output.text())
    }
}

/// The first `http://IP:PORT` in a line.
fn address_in(line: &str) -> Option<SocketAddr> {
    let rest = &line[line.find("http://")? + "http://".len()..];
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':')).unwrap_or(rest.len());
    rest[..end].trim_end_matches(['.', ':']).parse().ok()
}

/// A running coordinator. Every test ends it with [`Boss::finish`] or [`Boss::kill`]; dropping it is for failed tests,
/// and kills every process.
pub struct Boss {
    child: Child,
    output: Output,
    client: Client,
    mark: String,
    folder: Arc<TempDir>,
    ended: bool,
}

impl Boss {
    /// A client of the coordinator's API.
    pub const fn client(&self) -> Client {
        self.client
    }

    /// The output of the coordinator.
    pub const fn output(&self) -> &Output {
        &self.output
    }

    /// The pid of the coordinator.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends one question to a model; returns the whole answer.
    pub async fn chat(&self, model: &str, text: &str) -> Answer {
        self.client.post("/v1/chat/completions", &question(model, text)).await
    }

    /// Sends one question to a model; returns the answer's stream.
    pub async fn chat_streamed(&self, model: &str, text: &str) -> Streamed {
        let mut body = question(model, text);
        body["stream"] = true.into();
        self.client.stream("/v1/chat/completions", &body).await
    }

    /// Sends a chat request in the background; returns its whole answer. Aborting the task closes the connection.
    pub fn ask(&self, body: Value) -> JoinHandle<Answer> {
        let client = self.client;
        tokio::spawn(async move { client.post("/v1/chat/completions", &body).await })
    }

    /// The body of `GET path`, which must succeed.
    pub async fn read(&self, path: &str) -> Value {
        let answer = self.client.get(path).await;
        assert!(answer.status.is_success(), "GET {path}: {answer:?}");
        answer.json()
    }

    /// Sends the coordinator a signal.
    pub fn signal(&self, signal: Signal) {
        kill(pid(self.child.id()), signal).expect("the coordinator is there to be signalled");
    }

    /// Waits until the coordinator ends by itself, and checks that no process, lease or file is left.
    pub async fn exit(mut self) -> ExitStatus {
        let processes = self.processes();
        let status = exit_of(&mut self.child, PATIENCE).await;
        self.ended = true;
        self.no_process_stays(processes).await;
        if status.success() {
            self.no_lease_stays();
        }
        status
    }

    /// Waits for the coordinator's end after it was killed together with its guards. Processes that are left stay, for
    /// the test to inspect.
    pub async fn is_killed(mut self) {
        exit_of(&mut self.child, PATIENCE).await;
        self.ended = true;
    }

    /// Every living process that the coordinator started.
    pub fn processes(&self) -> Processes {
        Processes::below(self.child.id()).and(Processes::marked(&self.mark)).without(self.child.id())
    }

    /// Sends SIGTERM; checks that the coordinator drains, exits with success and leaves no process, lease or file.
    pub async fn finish(self) {
        let output = self.output.clone();
        self.signal(Signal::SIGTERM);
        let status = self.exit().await;
        assert!(status.success(), "the coordinator ended with {status}; its output:\n{}", output.text());
    }

    /// Kills the coordinator with SIGKILL; checks that every process that it started is gone 2 s later.
    pub async fn kill(self) {
        self.signal(Signal::SIGKILL);
        self.exit().await;
    }

    /// Asserts that no process of this coordinator is alive, and its port is free.
    async fn no_process_stays(&self, known: Processes) {
        let left = || known.alive().and(Processes::marked(&self.mark));
        let none = async || left().is_empty().then_some(());
        if tokio::time::timeout(GONE_WITHIN, until(PATIENCE, "no process is left", none)).await.is_err() {
            panic!("{GONE_WITHIN:?} after the coordinator's end these live: {}", left().describe());
        }
        assert!(!self.client.listens().await, "somebody still listens on the coordinator's port");
    }

    /// Asserts that the ledger of a coordinator that ended properly holds no lease.
    fn no_lease_stays(&self) {
        let state = self.folder.path().join("state");
        // A simulated machine has a ledger of its own.
        let simulated = state.join("simulation");
        let state = if simulated.is_dir() { simulated } else { state };
        let mut store = EmbeddedStore::open(&state).expect("nobody holds the ledger any more");
        let document = store.load().expect("the ledger can be read").document;
        let ledger: Value =
            document.map_or(Value::Null, |text| serde_json::from_str(&text).expect("the ledger is JSON"));
        let leases = ledger["leases"].as_object();
        assert!(leases.is_none_or(serde_json::Map::is_empty), "leases are left: {leases:?}");
    }
}

impl Drop for Boss {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the coordinator's output\n{}---", self.output.text());
        }
        if !self.ended {
            let processes = self.processes();
            _ = self.child.kill();
            _ = self.child.wait();
            for pid in processes.alive().pids() {
                _ = kill(self::pid(pid), Signal::SIGKILL);
            }
        }
    }
}

/// The body of a chat request.
pub fn question(model: &str, text: &str) -> Value {
    json!({ "model": model, "messages": [{ "role": "user", "content": text }] })
}

const fn pid(number: u32) -> Pid {
    Pid::from_raw(number.cast_signed())
}

async fn exit_of(child: &mut Child, patience: Duration) -> ExitStatus {
    until(patience, "the coordinator ends", async || child.try_wait().expect("our own child")).await
}

/// The output of a process, standard output and standard error together, line by line.
#[derive(Clone)]
pub struct Output {
    lines: Arc<Mutex<Vec<String>>>,
    changed: Arc<watch::Sender<usize>>,
}

impl Default for Output {
    fn default() -> Self {
        Self { lines: Arc::default(), changed: Arc::new(watch::Sender::new(0)) }
    }
}

impl Output {
    /// The output so far.
    pub fn text(&self) -> String {
        self.lines.lock().unwrap().iter().map(|line| format!("{line}\n")).collect()
    }

    /// The first line that `wanted` accepts, among printed and future ones.
    pub async fn line(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let mut changes = self.changed.subscribe();
        let found = async {
            loop {
                changes.borrow_and_update();
                if let Some(line) = self.lines.lock().unwrap().iter().find(|line| wanted(line)) {
                    return line.clone();
                }
                if *changes.borrow() >= CLOSED {
                    panic!("it ended before it {what}; its output:\n{}", self.text());
                }
                _ = changes.changed().await;
            }
        };
        within(PATIENCE, &format!("the coordinator {what}"), found).await
    }

    /// Waits until both streams are closed.
    async fn closed(&self) {
        let mut changes = self.changed.subscribe();
        within(PATIENCE, "the output ends", changes.wait_for(|n| *n >= CLOSED)).await.expect("we hold the sender");
    }

    fn collect(&self, stream: impl Read + Send + 'static) {
        let (lines, changed) = (Arc::clone(&self.lines), Arc::clone(&self.changed));
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
                changed.send_modify(|n| *n += 1);
            }
            changed.send_modify(|n| *n += CLOSED / 2);
        });
    }
}

/// The value that the counter of lines reaches when both streams have ended: each end adds half of it.
const CLOSED: usize = 1 << 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_a_sentence() {
        let address = Some(SocketAddr::from(([127, 0, 0, 1], 8210)));
        assert_eq!(address_in("  listening on http://127.0.0.1:8210/v1 (try it)"), address);
        assert_eq!(address_in("http://127.0.0.1:8210."), address);
        assert_eq!(address_in("no address here"), None);
    }
}
