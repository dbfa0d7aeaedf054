//! A real server in a folder of its own, reached over a socket file.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::until;

/// A running server. It ends with this value.
pub(crate) struct Server {
    process: Child,
    folder: tempfile::TempDir,
}

impl Server {
    /// Starts a server that writes every change to disk. `None`, with a printed reason, if none is installed.
    pub(crate) fn start() -> Option<Self> {
        program()?;
        let folder = tempfile::tempdir().unwrap();
        Some(Self { process: run(&folder), folder })
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// A connection of an observer.
    pub(crate) fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    pub(crate) fn config(&self, name: &str, value: &str) {
        redis::cmd("CONFIG").arg("SET").arg(name).arg(value).exec(&mut self.connection()).unwrap();
    }

    pub(crate) fn flush(&self) {
        redis::cmd("FLUSHALL").exec(&mut self.connection()).unwrap();
    }

    /// Kills the server with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        // The socket file of a killed server stays.
        std::fs::remove_file(self.socket()).unwrap();
    }

    pub(crate) fn start_again(&mut self) {
        self.process = run(&self.folder);
    }

    /// Deletes the server's data on disk.
    pub(crate) fn forget(&self) {
        std::fs::remove_dir_all(self.folder.path().join("appendonlydir")).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have been killed or removed before, so errors are ignored.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run(folder: &tempfile::TempDir) -> Child {
    let socket = folder.path().join("redis.sock");
    let process = Command::new(program().unwrap())
        .args(["--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "always"])
        .arg("--dir")
        .arg(folder.path())
        .arg("--unixsocket")
        .arg(&socket)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let client = redis::Client::open(format!("redis+unix://{}", socket.display())).unwrap();
    until(|| redis::cmd("PING").exec(&mut client.get_connection().ok()?).ok());
    process
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
