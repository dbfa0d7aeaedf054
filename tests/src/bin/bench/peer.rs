//! Other programs that measurements compare with. The module finds installed programs, and installs and builds none.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model_boss_tests::{Client, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The path of a program: from this environment variable, else from PATH.
pub(crate) fn peer(variable: &str, name: &str) -> Result<PathBuf, String> {
    if let Some(program) = std::env::var_os(variable) {
        return Ok(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = [PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")];
    let found = std::env::split_paths(&path).chain(system).map(|folder| folder.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| format!("not measured: {variable} is not set and there is no {name} on PATH"))
}

/// A process that ends with this value.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGTERM rather than SIGKILL: nginx and llama-server's router have processes of their own to end.
        _ = kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
        _ = self.0.wait();
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// A llama.cpp server that is ready.
pub(crate) struct LlamaServer {
    pub(crate) client: Client,
    /// The time from the start of the process to its first healthy answer.
    pub(crate) ready_after: Duration,
    pub(crate) process: Process,
}

impl LlamaServer {
    /// Starts the server with these arguments, and waits until `/health` answers that it is ready.
    pub(crate) async fn start(program: &Path, arguments: &[&str]) -> Self {
        let port = free_port();
        let mut command = Command::new(program);
        command.args(["--host", "127.0.0.1", "--port", &port.to_string(), "--no-webui"]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let begun = Instant::now();
        let process = Process(command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}")));
        let client = Client::new(SocketAddr::from(([127, 0, 0, 1], port)));
        until(Duration::from_secs(120), "llama-server is healthy", async || {
            if !client.listens().await {
                return None;
            }
            client.get("/health").await.status.is_success().then_some(())
        })
        .await;
        Self { client, ready_after: begun.elapsed(), process }
    }
}
