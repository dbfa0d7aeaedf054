//! The gateways in front of the same backend: none, the coordinator, nginx as a plain proxy, a router in Rust. The
//! module starts them, measures their cost, and assigns them to CPUs. It installs none: an absent one is named and
//! omitted.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use model_boss_protocol::{Category, DeviceId, Generation, SandboxMode, SpawnToken, Speculation, WorkerSpec};
use model_boss_tests::{Boss, Client, Processes, Sandbox, until};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::{Pid, SysconfVar, sysconf};

use super::load::question;
use crate::peer::{Process, free_port, peer};

/// The longest wait for a gateway's first answer.
const START: Duration = Duration::from_secs(60);

/// A running gateway, with a backend of its own.
pub(super) struct Gateway {
    pub(super) name: &'static str,
    pub(super) address: SocketAddr,
    own: Vec<u32>,
    /// The backend's processes. A backend that the coordinator started has guards around it.
    backend: Vec<u32>,
    running: Running,
}

/// The processes to end after the measurement.
enum Running {
    Direct { _backend: Process },
    Ours(Box<Boss>),
    Peer { _gateway: Process, _backend: Process },
}

/// A gateway, or the reason why it is absent.
pub(super) type Found = Result<Gateway, String>;

impl Gateway {
    /// The case without a gateway: the loopback round trip to the backend, which is the lower limit of all figures.
    pub(super) async fn direct() -> Self {
        let (backend, address) = backend();
        let pid = backend.id();
        Self {
            name: DIRECT,
            address,
            own: vec![pid],
            backend: vec![pid],
            running: Running::Direct { _backend: backend },
        }
        .ready()
        .await
    }

    /// The coordinator, which starts its backend itself.
    pub(super) async fn ours(sandbox: &Sandbox) -> Self {
        let folder = sandbox.path("models/mock");
        fs::create_dir_all(&folder).unwrap();
        sandbox.model("mock", &folder, "vram = \"64MiB\"\nmax_concurrent = 4096");
        let boss = sandbox.launch(&std::env::current_exe().unwrap()).start().await;
        let address = boss.client().address();
        let own = vec![boss.pid()];
        let mut gateway =
            Self { name: OURS, address, own, backend: Vec::new(), running: Running::Ours(Box::new(boss)) };
        gateway = gateway.ready().await;
        if let Running::Ours(boss) = &gateway.running {
            gateway.backend = Processes::below(boss.pid()).pids().collect();
        }
        gateway
    }

    /// The proxy nginx with one worker. It parses no body, so it is a lower limit for proxies rather than an equal
    /// peer.
    pub(super) async fn nginx(folder: &Path) -> Found {
        let program = peer("MODEL_BOSS_BENCH_NGINX", "nginx")?;
        let (backend, behind) = backend();
        let (port, folder) = (free_port(), folder.join("nginx"));
        fs::create_dir_all(&folder).unwrap();
        let place = folder.display();
        let config = format!(
            "worker_processes 1;\npid {place}/pid;\nerror_log {place}/errors;\ndaemon off;\nworker_rlimit_nofile 16384;\n\
             events {{ worker_connections 8192; }}\nhttp {{\n  access_log off;\n  client_body_temp_path {place}/b;\n  \
             proxy_temp_path {place}/p;\n  fastcgi_temp_path {place}/f;\n  uwsgi_temp_path {place}/u;\n  \
             scgi_temp_path {place}/s;\n  keepalive_requests 100000000;\n  upstream backend {{ server {behind}; \
             keepalive 64; keepalive_requests 100000000; }}\n  server {{ listen 127.0.0.1:{port} reuseport; location / \
             {{ proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_pass http://backend; }} }}\n}}\n"
        );
        fs::write(folder.join("nginx.conf"), config).unwrap();
        let mut command = Command::new(program);
        command.arg("-p").arg(&folder).arg("-e").arg(folder.join("errors")).arg("-c").arg(folder.join("nginx.conf"));
        Ok(Self::peer(NGINX, command, port, backend).await)
    }

    /// The router of vLLM, which is written in Rust and parses the body, as the coordinator does.
    pub(super) async fn vllm_router() -> Found {
        let program = peer("MODEL_BOSS_BENCH_VLLM_ROUTER", "vllm-router")?;
        let (backend, behind) = backend();
        let (port, metrics) = (free_port(), free_port().to_string());
        let mut command = Command::new(program);
        command.args([
            "--host",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--worker-urls",
            &format!("http://{behind}"),
        ]);
        command.args(["--policy", "round_robin", "--prometheus-port", &metrics, "--log-level", "error"]);
        command.args(["--max-concurrent-requests", "8192"]).env("no_proxy", "127.0.0.1");
        Ok(Self::peer(VLLM_ROUTER, command, port, backend).await)
    }

    async fn peer(name: &'static str, mut command: Command, port: u16, backend: Process) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let gateway = Process(command.spawn().unwrap_or_else(|error| panic!("cannot start {name}: {error}")));
        let (id, behind) = (gateway.id(), vec![backend.id()]);
        let running = Running::Peer { _gateway: gateway, _backend: backend };
        let mut ready = Self { name, address, own: vec![id], backend: behind, running }.ready().await;
        ready.own.extend(Processes::below(id).pids());
        ready
    }

    /// Waits until the gateway answers a question.
    async fn ready(self) -> Self {
        let client = Client::new(self.address);
        let what = format!("{} answers at {}", self.name, self.address);
        let raw = question(self.address, None);
        let body = raw[raw.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4..].to_vec();
        until(START, &what, async || {
            if !client.listens().await {
                return None;
            }
            let request = client.request(http::Method::POST, "/v1/chat/completions", body.clone());
            client.send(request).await.status.is_success().then_some(())
        })
        .await;
        self
    }

    /// Puts the gateway's threads on the CPU `gateway` and its backend on `backend`; `None` is any CPU.
    pub(super) fn pin(&self, gateway: Option<usize>, backend: Option<usize>) {
        self.own.iter().for_each(|pid| pin_process(*pid, gateway));
        // Without a gateway the backend itself is measured, on its usual CPU.
        self.backend.iter().for_each(|pid| pin_process(*pid, backend));
    }

    /// The CPU time of the gateway's processes so far, without the backend's.
    pub(super) fn cpu_time(&self) -> Duration {
        let ticks_per_second = sysconf(SysconfVar::CLK_TCK).unwrap().unwrap();
        let ticks: u64 = self.own.iter().map(|pid| stat(*pid)).sum();
        Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64)
    }

    /// The resident memory of the gateway's processes in bytes, without the backend's.
    pub(super) fn resident(&self) -> u64 {
        let of = |pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
        };
        self.own.iter().map(of).sum()
    }

    /// Ends the processes of the gateway and its backend.
    pub(super) async fn finish(self) {
        if let Running::Ours(boss) = self.running {
            boss.finish().await;
        }
    }
}

pub(super) const DIRECT: &str = "direct";
pub(super) const OURS: &str = "model-boss";
pub(super) const NGINX: &str = "nginx";
pub(super) const VLLM_ROUTER: &str = "vllm-router";

/// Puts every thread of a process on one CPU, or on all.
fn pin_process(pid: u32, cpu: Option<usize>) {
    let mut set = CpuSet::new();
    let cpus = sysconf(SysconfVar::_NPROCESSORS_ONLN).unwrap().unwrap();
    (0..usize::try_from(cpus).unwrap()).filter(|number| cpu.is_none_or(|cpu| cpu == *number)).for_each(|number| {
        set.set(number).unwrap();
    });
    for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let id: i32 = thread.file_name().to_str().unwrap().parse().unwrap();
        // A thread that has just ended cannot be assigned.
        _ = sched_setaffinity(Pid::from_raw(id), &set);
    }
}

/// Puts this process, which makes the load, on one CPU or on all.
pub(super) fn pin_load(cpu: Option<usize>) {
    pin_process(std::process::id(), cpu);
}

/// User and system time in ticks.
fn stat(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// A backend on a port of its own choice.
fn backend() -> (Process, SocketAddr) {
    let spec = WorkerSpec {
        model: "mock".into(),
        category: Category::Llm,
        source: PathBuf::from("/"),
        device: DeviceId::Cpu,
        parts: Vec::new(),
        port: 0,
        generation: Generation(1),
        token: SpawnToken::from_bits(1),
        proof: SpawnToken::from_bits(2),
        context_length: None,
        max_concurrent: 4096,
        residency: Default::default(),
        params: Default::default(),
        chat_template: None,
        thinking: None,
        settings: [].into(),
        text: Default::default(),
        cpu_features: None,
        threads: None,
        speculation: Speculation::default(),
        draft: None,
        speech: None,
        voices: Default::default(),
        sandbox: SandboxMode::default(),
        parking: None,
    };
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = command.arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(spec.to_line().unwrap().as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().trim_start_matches("http://").parse().unwrap();
    (Process(child), address)
}
