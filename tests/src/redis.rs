//! A real Redis server in a folder of its own, with a socket file. A test may kill, stop and empty it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use model_boss_protocol::Later;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::wait::PATIENCE;

/// A server, running or killed. It ends with this value.
pub struct RedisServer {
    process: Child,
    folder: TempDir,
}

impl RedisServer {
    /// Starts a server that writes every change to disk. Returns `None`, and prints the reason, where none is
    /// installed.
    pub fn start() -> Option<Self> {
        let server = Self::prepared()?;
        server.is_up();
        Some(server)
    }

    fn prepared() -> Option<Self> {
        program()?;
        let folder = tempfile::Builder::new().prefix("model-boss-redis-").tempdir().unwrap();
        Some(Self { process: run(folder.path()), folder })
    }

    /// The value for `--redis`.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// The path of the server's socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        // The socket file of a killed server stays.
        _ = std::fs::remove_file(self.socket());
    }

    /// Starts the server again with its files.
    pub fn start_again(&mut self) {
        self.process = run(self.folder.path());
        self.is_up();
    }

    /// Sends the server a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().cast_signed()), signal).unwrap();
    }

    /// Copies the server's files, to be restored later. The server must have been killed.
    pub fn copy_files(&self, to: &Path) {
        copy(&self.files(), to);
    }

    /// Restores an earlier copy of the server's files; without a copy, removes them.
    pub fn put_files(&self, from: &Path) {
        _ = std::fs::remove_dir_all(self.files());
        copy(from, &self.files());
    }

    fn files(&self) -> PathBuf {
        self.folder.path().join("appendonlydir")
    }

    /// Sends a command; returns the answer as received, without its framing where it is one text.
    pub fn ask(&self, words: &[&str]) -> Option<String> {
        ask(&self.socket(), words)
    }

    /// The only readable document: the ledger of the host, or of its simulated machine.
    pub fn ledger(&self) -> Option<serde_json::Value> {
        Self::ledger_at(&self.socket())
    }

    /// Replaces the document, as a user of the server's console could.
    pub fn put_ledger(&self, ledger: &serde_json::Value) {
        let keys = self.ask(&["KEYS", "mb:{*:ledger"]).unwrap_or_default();
        let key = keys.lines().find(|line| line.starts_with("mb:{")).expect("a ledger was begun");
        self.ask(&["HSET", key, "document", &ledger.to_string(), "etag", "0123456789abcdef0123456789abcdef"])
            .expect("the server answers");
    }

    /// The document of the server with this socket.
    pub fn ledger_at(socket: &Path) -> Option<serde_json::Value> {
        let keys = ask(socket, &["KEYS", "mb:{*:ledger"])?;
        let key = keys.lines().find(|line| line.starts_with("mb:{"))?.to_owned();
        serde_json::from_str(&ask(socket, &["HGET", &key, "document"])?).ok()
    }

    fn is_up(&self) {
        let deadline = Instant::now().later(PATIENCE);
        while self.ask(&["PING"]).is_none() {
            assert!(Instant::now() < deadline, "the Redis server does not answer");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // The process may have ended, or been collected, already.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

fn run(folder: &Path) -> Child {
    Command::new(program().unwrap())
        .args(["--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "always"])
        .arg("--dir")
        .arg(folder)
        .arg("--unixsocket")
        .arg(folder.join("redis.sock"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn program() -> Option<&'static str> {
    static FOUND: OnceLock<Option<&'static str>> = OnceLock::new();
    let runs = |name: &&str| {
        Command::new(name).arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    *FOUND.get_or_init(|| {
        let found = ["redis-server", "valkey-server"].into_iter().find(runs);
        if found.is_none() {
            eprintln!("skipped: neither redis-server nor valkey-server is installed");
        }
        found
    })
}

/// Sends one command in Redis's protocol (RESP2) and reads one answer.
fn ask(socket: &Path, words: &[&str]) -> Option<String> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let mut question = format!("*{}\r\n", words.len());
    for word in words {
        question.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(question.as_bytes()).ok()?;
    stream.shutdown(std::net::Shutdown::Write).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, rest) = answer.split_once("\r\n")?;
    match head.as_bytes().first()? {
        b'$' if head != "$-1" => Some(rest.trim_end_matches("\r\n").to_owned()),
        b'*' => Some(rest.lines().filter(|line| !line.starts_with('$')).collect::<Vec<_>>().join("\n")),
        b'+' | b':' => Some(head[1..].to_owned()),
        _ => None,
    }
}

fn copy(from: &Path, to: &Path) {
    let Ok(entries) = std::fs::read_dir(from) else { return };
    std::fs::create_dir_all(to).unwrap();
    for entry in entries.flatten() {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}
