//! One worker without a coordinator, started as the coordinator starts one.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::Full;
use model_boss_protocol::{
    ByteCount, Category, DeviceId, EngineStats, Generation, ReadyProof, Residency, SandboxMode, SpawnToken,
    Speculation, TextLimits, WorkerHealth, WorkerSpec, headers,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::binaries::binary;
use crate::client::{Answer, Client};
use crate::ports::own_ports;
use crate::wait::{PATIENCE, until};

/// A worker process, which is killed when the value is dropped.
pub struct LoneWorker {
    child: Child,
    stdin: Option<ChildStdin>,
    address: SocketAddr,
}

impl LoneWorker {
    /// Starts the binary of this name, with the worker's gate closed.
    pub fn spawn(name: &str) -> Self {
        Self::spawn_program(&binary(name))
    }

    /// Starts the program, with the worker's gate closed.
    pub fn spawn_program(program: &Path) -> Self {
        let mut command = Command::new(program);
        command.arg("serve").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let stdin = child.stdin.take();
        let free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        let port = own_ports().find(free).expect("a free port");
        Self { child, stdin, address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)) }
    }

    /// Sets another address to listen on.
    #[must_use]
    pub fn at(mut self, address: SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// Opens the gate for the model at `source`.
    pub fn open_gate(&mut self, source: &Path) {
        self.open_gate_as(source, Residency::default());
    }

    /// Opens the gate for the model at `source`, with this residency of its layers.
    pub fn open_gate_as(&mut self, source: &Path, residency: Residency) {
        self.open_gate_with(source, |spec| spec.residency = residency);
    }

    /// Opens the gate for the model at `source`, with a changed start line.
    pub fn open_gate_with(&mut self, source: &Path, change: impl FnOnce(&mut WorkerSpec)) {
        let mut spec = WorkerSpec {
            model: "tiny".into(),
            category: Category::Llm,
            source: source.to_owned(),
            device: DeviceId::Cpu,
            parts: Vec::new(),
            port: self.address.port(),
            generation: self.generation(),
            token: Self::token(),
            proof: self.proof(),
            context_length: None,
            max_concurrent: 32,
            residency: Residency::default(),
            params: [].into(),
            chat_template: None,
            thinking: None,
            settings: [].into(),
            text: TextLimits::default(),
            cpu_features: None,
            threads: None,
            speculation: Speculation::default(),
            draft: None,
            speech: None,
            voices: Default::default(),
            sandbox: SandboxMode::default(),
            parking: None,
        };
        change(&mut spec);
        self.write(&spec.to_line().expect("a start line is JSON"));
    }

    /// Writes to the worker's standard input.
    pub fn write(&mut self, line: &str) {
        self.stdin.as_mut().expect("the lifeline is not cut").write_all(line.as_bytes()).expect("it reads");
    }

    /// Closes the worker's standard input, as its coordinator's end would.
    pub fn cut_lifeline(&mut self) {
        self.stdin.take();
    }

    /// Sends the worker a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).expect("it is there to be signalled");
    }

    /// The pid of the worker.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The address that the worker listens on.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The token that requests must carry.
    pub fn token() -> SpawnToken {
        SpawnToken::from_bits(11)
    }

    /// The proof that the worker's health answer must contain.
    pub fn proof(&self) -> ReadyProof {
        SpawnToken::from_bits(12)
    }

    /// The generation that the worker's start line states.
    pub const fn generation(&self) -> Generation {
        Generation(4)
    }

    /// Sends `GET` with the token.
    pub async fn get(&self, path: &str) -> Answer {
        let client = Client::new(self.address);
        client.send(with_token(client.request(Method::GET, path, ""))).await
    }

    /// Sends `POST` with the token.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        let client = Client::new(self.address);
        client.send(with_token(client.request(Method::POST, path, body.to_string()))).await
    }

    /// Sends `POST /v1/chat/completions` with the token, in the background. Aborting the task closes the connection.
    pub fn ask(&self, body: &Value) -> JoinHandle<Answer> {
        let client = Client::new(self.address);
        let request = with_token(client.request(Method::POST, "/v1/chat/completions", body.to_string()));
        tokio::spawn(async move { client.send(request).await })
    }

    /// The same for an answer that may be longer than the context.
    pub fn ask_shifting(&self, body: &Value) -> JoinHandle<Answer> {
        let client = Client::new(self.address);
        let mut request = with_token(client.request(Method::POST, "/v1/chat/completions", body.to_string()));
        request.headers_mut().insert(headers::CONTEXT_SHIFT, 0.into());
        tokio::spawn(async move { client.send(request).await })
    }

    /// Waits until the worker listens.
    pub async fn listens(&self) {
        let client = Client::new(self.address);
        until(PATIENCE, "the worker listens", async || client.listens().await.then_some(())).await;
    }

    /// Waits until the worker serves.
    pub async fn ready(&self) {
        self.listens().await;
        let ready = async || self.get("/health").await.status.is_success().then_some(());
        until(PATIENCE, "the worker is ready", ready).await;
    }

    /// A worker's lease with room for so many blocks of keys and values and no more. Measured with another worker that
    /// has more.
    pub async fn lease_with_room(source: &Path, blocks: u64, change: impl FnOnce(&mut WorkerSpec)) -> ByteCount {
        let mut worker = Self::spawn("model-boss-worker");
        worker.open_gate_with(source, |spec| {
            change(spec);
            spec.max_concurrent = 64;
            spec.parts = vec![(DeviceId::Cpu, ByteCount::mib(4096))];
        });
        worker.ready().await;
        let health = worker.get("/health").await.json();
        let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{health}"));
        let block = worker.figure("model_boss_worker_kv_bytes_per_token").await * 32;
        let room = worker.figure("model_boss_worker_kv_blocks_limit").await;
        ByteCount(number(&health["may_hold"][0][1]) - (room - blocks) * block)
    }

    /// One of the whole numbers in `/metrics`, once it is there.
    pub async fn figure(&self, name: &str) -> u64 {
        let look = async || {
            let metrics = String::from_utf8_lossy(&self.get("/metrics").await.body).into_owned();
            let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            line.and_then(|number| number.trim().parse().ok())
        };
        until(PATIENCE, name, look).await
    }

    /// Waits until the worker's engine's own figures satisfy `wanted`.
    pub async fn engine(&self, what: &str, wanted: impl Fn(&EngineStats) -> bool) -> EngineStats {
        let look = async || {
            let health: WorkerHealth = serde_json::from_slice(&self.get("/health").await.body).expect("health");
            Some(health.engine).filter(&wanted)
        };
        until(PATIENCE, what, look).await
    }

    /// Waits for the worker's exit; returns the code and its standard error.
    pub async fn end(mut self) -> (Option<i32>, String) {
        let status = until(PATIENCE, "the worker ends", async || self.child.try_wait().expect("our own child")).await;
        let mut text = String::new();
        let stderr = self.child.stderr.as_mut().expect("stderr is a pipe");
        stderr.read_to_string(&mut text).expect("its last words are text");
        (status.code(), text)
    }
}

impl Drop for LoneWorker {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn with_token(mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    let bearer = format!("Bearer {}", LoneWorker::token().reveal());
    request.headers_mut().insert(header::AUTHORIZATION, bearer.parse().expect("hexadecimal digits"));
    request
}
