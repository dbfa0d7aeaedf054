//! A model whose workers are fakes: the test sets their behaviour and reads their reports. This is the other end of the
//! control socket of `model-boss-fake-worker`.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use model_boss_fake_worker::behaviour::{Behaviour, FILE, FakeCommand, Report};
use model_boss_protocol::{ByteCount, CpuShare, DeviceId, Generation};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::fake_gpus::FakeGpus;
use crate::sandbox::Sandbox;
use crate::wait::{PATIENCE, within};

/// A model with fake workers.
pub struct FakeModel {
    name: String,
    script: Arc<Mutex<Script>>,
    spawned: mpsc::UnboundedReceiver<FakeWorker>,
}

/// The behaviour of future workers, and the number of workers so far.
struct Script {
    next: VecDeque<Behaviour>,
    then: Behaviour,
    ports: Vec<u16>,
    /// The GPUs whose memory workers use, if the machine is not simulated.
    gpus: Option<FakeGpus>,
}

impl Script {
    /// Takes a worker's memory: on each GPU that it sees, its lease, or the size that its behaviour states.
    fn take_memory(&self, pid: u32, behaviour: &Behaviour, env: &BTreeMap<String, String>, spec: &Value) {
        let (Some(gpus), Some(visible)) = (&self.gpus, env.get("CUDA_VISIBLE_DEVICES")) else { return };
        let parts: Vec<(DeviceId, ByteCount)> = serde_json::from_value(spec["parts"].clone()).unwrap_or_default();
        let parts: Vec<ByteCount> =
            parts.into_iter().filter(|(device, _)| matches!(device, DeviceId::Cuda(_))).map(|part| part.1).collect();
        let leased: ByteCount = parts.iter().copied().sum();
        let share = behaviour.holds.map_or(1.0, |holds| holds.0 as f64 / leased.0.max(1) as f64);
        for (uuid, part) in visible.split(',').zip(parts) {
            gpus.uses(pid, uuid, part.scaled(share));
        }
    }
}

impl Sandbox {
    /// A model with fake workers that needs 64 MiB.
    pub fn fake_model(&self, name: &str, behaviour: Behaviour) -> FakeModel {
        self.fake_model_with(name, "vram = \"64MiB\"", behaviour)
    }

    /// A model with fake workers and these further lines in its manifest.
    pub fn fake_model_with(&self, name: &str, manifest: &str, behaviour: Behaviour) -> FakeModel {
        let folder = self.path("models").join(name);
        self.model(name, &folder, manifest);
        FakeModel::create(name, &folder, &self.path(&format!("{name}.sock")), behaviour)
    }

    /// A model that [`Self::llama_server`] runs, with these further lines in its manifest.
    pub fn gguf_model(&self, name: &str, manifest: &str, behaviour: Behaviour) -> FakeModel {
        let model = self.fake_model_with(name, &format!("vram = \"64MiB\"\n{manifest}"), behaviour);
        std::fs::write(self.path("models").join(name).join("weights.gguf"), "no model").unwrap();
        model
    }
}

impl FakeModel {
    /// Creates the source folder `folder` and the socket `socket` beside it, and starts to listen.
    pub(crate) fn create(name: &str, folder: &Path, socket: &Path, behaviour: Behaviour) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let own = serde_json::json!({ "control": socket });
        std::fs::write(folder.join(FILE), own.to_string()).unwrap();
        let listener = UnixListener::bind(socket).unwrap();
        let script =
            Arc::new(Mutex::new(Script { next: VecDeque::new(), then: behaviour, ports: Vec::new(), gpus: None }));
        let (send, spawned) = mpsc::unbounded_channel();
        let answers = Arc::clone(&script);
        // The thread ends with the test's process: it waits in `accept`, and holds no other resource.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if let Some(worker) = greet(stream, &answers) {
                    _ = send.send(worker);
                }
            }
        });
        Self { name: name.to_owned(), script, spawned }
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the behaviour of future workers, once those of [`Self::behave_next`] are used up.
    pub fn behave(&self, behaviour: Behaviour) {
        self.script.lock().unwrap().then = behaviour;
    }

    /// Sets the behaviour of the next worker that has none yet. Two calls set the behaviour of the next two workers.
    pub fn behave_next(&self, behaviour: Behaviour) {
        self.script.lock().unwrap().next.push_back(behaviour);
    }

    /// Makes future workers use memory of these GPUs as they lease it.
    pub fn on_gpus(&self, gpus: &FakeGpus) {
        self.script.lock().unwrap().gpus = Some(gpus.clone());
    }

    /// The next worker that was started. Each is returned once.
    pub async fn worker(&mut self) -> FakeWorker {
        let what = format!("a worker of '{}' starts", self.name);
        within(PATIENCE, &what, self.spawned.recv()).await.expect("the listening thread lives as long as the test")
    }

    /// The number of workers started so far.
    pub fn spawns(&self) -> usize {
        self.ports().len()
    }

    /// The port of every worker so far.
    pub fn ports(&self) -> Vec<u16> {
        self.script.lock().unwrap().ports.clone()
    }
}

/// Reads a worker's first report and answers with its behaviour.
fn greet(mut stream: UnixStream, script: &Mutex<Script>) -> Option<FakeWorker> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let Report::Spawned { pid, port, generation, env, spec } = serde_json::from_str(&lines.next()?.ok()?).ok()? else {
        return None;
    };
    let behaviour = {
        let mut script = script.lock().unwrap();
        script.ports.push(port);
        let behaviour = script.next.pop_front().unwrap_or_else(|| script.then.clone());
        script.take_memory(pid, &behaviour, &env, &spec);
        behaviour
    };
    writeln!(stream, "{}", serde_json::to_string(&behaviour).ok()?).ok()?;
    let (send, reports) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for report in lines.map_while(Result::ok).filter_map(|line| serde_json::from_str(&line).ok()) {
            _ = send.send(report);
        }
    });
    Some(FakeWorker { pid, port, generation, env, spec, stream, reports, unread: Vec::new() })
}

/// One fake worker process.
pub struct FakeWorker {
    /// The pid of the worker.
    pub pid: u32,
    /// The port that the worker listens on.
    pub port: u16,
    /// The generation of the worker's slot.
    pub generation: Generation,
    /// The worker's environment variables.
    pub env: BTreeMap<String, String>,
    /// The worker's start line without the secrets.
    pub spec: Value,
    stream: UnixStream,
    reports: mpsc::UnboundedReceiver<Report>,
    unread: Vec<Report>,
}

/// A request as a worker received it.
#[derive(Debug)]
pub struct Received {
    /// The number of the request at this worker, from 1.
    pub number: u64,
    /// The path of the request.
    pub path: String,
    /// The headers without the token.
    pub headers: BTreeMap<String, String>,
    /// The body of the request.
    pub body: Value,
}

impl FakeWorker {
    /// Waits until the worker serves.
    pub async fn ready(&mut self) {
        self.report("is ready", |report| matches!(report, Report::Ready).then_some(())).await;
    }

    /// The next request that the worker received.
    pub async fn request(&mut self) -> Received {
        self.report("gets a request", |report| match report {
            Report::Request { number, path, headers, body } => {
                Some(Received { number: *number, path: path.clone(), headers: headers.clone(), body: body.clone() })
            }
            _ => None,
        })
        .await
    }

    /// Waits until a request pauses at `hold_after_tokens`; returns its number.
    pub async fn held(&mut self) -> u64 {
        self.report("holds a request", |r| if let Report::Held { number } = r { Some(*number) } else { None }).await
    }

    /// Waits until the worker gave up a request whose client disconnected; returns its number.
    pub async fn cancelled(&mut self) -> u64 {
        self.report("cancels a request", |report| match report {
            Report::Cancelled { number, .. } => Some(*number),
            _ => None,
        })
        .await
    }

    /// Waits until the worker gave a whole answer; returns the request's number.
    pub async fn answered(&mut self) -> u64 {
        self.report("answers a request", |report| match report {
            Report::Answered { number } => Some(*number),
            _ => None,
        })
        .await
    }

    /// The next share of the cores that the worker was given.
    pub async fn share(&mut self) -> CpuShare {
        self.report("gets a share of the cores", |report| match report {
            Report::Share { share } => Some(*share),
            _ => None,
        })
        .await
    }

    /// Waits until the worker received SIGTERM.
    pub async fn terminating(&mut self) {
        self.report("gets SIGTERM", |report| matches!(report, Report::Terminating).then_some(())).await;
    }

    /// Waits until the worker's process is gone; returns its unread reports.
    pub async fn gone(&mut self) -> Vec<Report> {
        let what = format!("worker {} is gone", self.pid);
        while let Some(report) = within(PATIENCE, &what, self.reports.recv()).await {
            self.unread.push(report);
        }
        std::mem::take(&mut self.unread)
    }

    /// Ends the pause of `hold_load`.
    pub fn finish_load(&self) {
        self.tell(FakeCommand::FinishLoad);
    }

    /// Ends the pause of `hold_after_tokens`.
    pub fn decode(&self) {
        self.tell(FakeCommand::Decode);
    }

    /// Sends the worker a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid.cast_signed()), signal).expect("the worker is there to be signalled");
    }

    /// Kills the worker with SIGKILL.
    pub fn kill(&self) {
        self.signal(Signal::SIGKILL);
    }

    fn tell(&self, command: FakeCommand) {
        writeln!(&self.stream, "{}", serde_json::to_string(&command).unwrap()).expect("the worker listens");
    }

    /// The first report that `pick` accepts; others are kept for later calls.
    async fn report<T>(&mut self, what: &str, pick: impl Fn(&Report) -> Option<T>) -> T {
        if let Some((at, found)) = self.unread.iter().enumerate().find_map(|(at, r)| Some((at, pick(r)?))) {
            self.unread.remove(at);
            return found;
        }
        let what = format!("worker {} {what}", self.pid);
        loop {
            let report = within(PATIENCE, &what, self.reports.recv()).await;
            let report = report.unwrap_or_else(|| panic!("the worker is gone before: {what}; seen: {:?}", self.unread));
            if let Some(found) = pick(&report) {
                return found;
            }
            self.unread.push(report);
        }
    }
}
