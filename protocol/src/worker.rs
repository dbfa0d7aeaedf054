//! The protocol between the coordinator and a worker, apart from OpenAI's API: the start line, health, exit codes.
//!
//! A worker does nothing until one line of [`WorkerSpec`] arrives on its stdin. That is the gate: the coordinator
//! writes the line only after the lease ledger has recorded the worker's pid. The pipe stays open, and carries a
//! [`WorkerOrder`](crate::WorkerOrder) now and then. Its end means that the coordinator has ended, and the worker exits
//! at once.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    ByteCount, Category, DeviceId, DraftSpec, Generation, InstructionSet, ModelId, Residency, SandboxMode,
    SandboxState, SpawnToken, Speculation, SpeechProgram, Thinking, WorkerCores,
};

/// Names of headers on the private connection between coordinator and worker.
pub mod headers {
    /// `Authorization: Bearer TOKEN` with [`crate::WorkerSpec::token`] on every call to a worker.
    pub const AUTHORIZATION: &str = "authorization";
    /// The id of the request, echoed by the worker.
    pub const REQUEST_ID: &str = "x-request-id";
    /// The time that the request has left, in milliseconds; without the header there is no limit. A worker answers
    /// within it, or with `deadline_exceeded`: status 504 before its answer began, an error event in a stream. It stops
    /// the work then. The connection to an engine without support for the header is closed at that moment.
    pub const DEADLINE_MS: &str = "x-deadline-ms";
    /// The request's priority, 0 to 9, where lower is more important. A worker may order its work by it.
    pub const PRIORITY: &str = "x-priority";
    /// The caller, as a text that differs between callers and means nothing else. Our own worker shares the keys and
    /// values of prompts between requests of one caller, and never between two. Clients cannot set it.
    pub const CALLER: &str = "x-caller";
    /// An answer goes on when the context is full: the older half of the tokens is forgotten. The number is that of
    /// the prompt's first tokens that stay; a negative one means the whole prompt. Without the header the answer ends
    /// there. Only our own worker reads it.
    pub const CONTEXT_SHIFT: &str = "x-context-shift";
    /// Bytes of an adapter's configuration, with which the body of `PUT /adapters/{name}` begins; the weights follow.
    /// Without the header the body is a GGUF file.
    pub const ADAPTER_CONFIG: &str = "x-adapter-config-bytes";
    /// The most bytes of parked prefixes that a worker gives out (`GET /parked`).
    pub const PARKED_BYTES: &str = "x-parked-bytes";
    /// The milliseconds in which it gives them out: the hottest come first, and the others are left out.
    pub const PARKED_MS: &str = "x-parked-ms";
}

/// The line that starts a worker, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerSpec {
    /// The model's name, used in answers.
    pub model: ModelId,
    /// The model's category.
    pub category: Category,
    /// A folder or file with the weights; absolute.
    pub source: PathBuf,
    /// The device to run on. It is never `auto`, since the coordinator has decided. A GPU is index 0 of those that the
    /// worker sees.
    pub device: DeviceId,
    /// The bytes of the worker's lease on each device, by the names the coordinator uses. Several accelerators are a
    /// split (RC-22), in the order in which the worker sees them; `cpu` beside an accelerator is what
    /// [`Self::host_bytes`] gives.
    #[serde(default)]
    pub parts: Vec<(DeviceId, ByteCount)>,
    /// The port to listen on, on 127.0.0.1.
    pub port: u16,
    /// The slot's generation.
    pub generation: Generation,
    /// The token that callers must present.
    pub token: SpawnToken,
    /// The secret that only this worker has; shown in [`WorkerHealth::proof`].
    pub proof: ReadyProof,
    /// The longest prompt plus answer, in tokens; the model's own limit when absent.
    #[serde(default)]
    pub context_length: Option<u64>,
    /// The number of sequences decoded at once.
    pub max_concurrent: u32,
    /// Whether layers stay on the device or are streamed through the worker's part of [`Self::parts`].
    #[serde(default)]
    pub residency: Residency,
    /// Request fields used when the request does not set them.
    #[serde(default)]
    pub params: BTreeMap<String, serde_json::Value>,
    /// A Jinja chat template in place of the model's own.
    #[serde(default)]
    pub chat_template: Option<String>,
    /// Whether a model that can reason before its answer does so, and for how many tokens.
    #[serde(default)]
    pub thinking: Option<Thinking>,
    /// Settings of the manifest for this kind of worker alone: its own table below `[custom]`.
    #[serde(default)]
    pub settings: BTreeMap<String, serde_json::Value>,
    /// Limits on turning requests into prompts.
    #[serde(default)]
    pub text: TextLimits,
    /// The instructions that products on the CPU use; the machine's best when absent.
    #[serde(default)]
    pub cpu_features: Option<InstructionSet>,
    /// The number of threads that compute on the CPU; chosen by the worker when absent.
    #[serde(default)]
    pub threads: Option<NonZero<u32>>,
    /// Whether tokens that probably come next are evaluated in advance.
    #[serde(default)]
    pub speculation: Speculation,
    /// The model that writes drafts beside the one of [`Self::source`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<DraftSpec>,
    /// The program that speaks; the worker has no model of its own then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speech: Option<SpeechProgram>,
    /// Other names for voices.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub voices: BTreeMap<String, String>,
    /// Whether the worker confines itself before it looks at the model's files.
    #[serde(default)]
    pub sandbox: SandboxMode,
    /// The identity of the model's files and of the worker's program, for parked prefixes. None are parked without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parking: Option<String>,
}

/// Limits on a model's chat template and tokenizer. Both are programs that come with the model's files, so they run
/// in processes of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TextLimits {
    /// The longest time for one request.
    pub time: Duration,
    /// The memory that one request may use, the vocabulary not counted.
    pub memory: ByteCount,
    /// The stack that a template may use.
    pub stack: ByteCount,
    /// The number of requests processed at the same time.
    pub processes: u32,
}

impl Default for TextLimits {
    fn default() -> Self {
        Self { time: Duration::from_secs(5), memory: ByteCount::mib(256), stack: ByteCount::mib(8), processes: 2 }
    }
}

/// A second secret of the spawn. It proves that the process on the port is the one that read the start line. Another
/// process that bound the port first cannot have it.
pub type ReadyProof = SpawnToken;

/// The start line cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkerSpecError {
    /// Standard input ended before the line: the process that started the worker has ended.
    #[error("standard input ended before the start line came")]
    Closed,
    /// The line is no valid start line.
    #[error("the start line is not a worker spec")]
    Malformed(#[source] serde_json::Error),
}

impl WorkerSpec {
    /// The devices that the worker's layers go to, and the bytes that it may take of each. Devices have the names of
    /// the worker's own view: a GPU has its number among those that the worker sees. A worker started by hand sees all
    /// of them. The list is never empty, and a device without a part has no limit.
    ///
    /// ```
    /// # use model_boss_protocol::{ByteCount, DeviceId, WorkerSpec};
    /// # let mut spec = WorkerSpec::from_line(r#"{"model":"m","category":"llm","source":"/m","device":"cuda:0",
    /// #   "port":1,"generation":1,"token":"00","proof":"00","max_concurrent":1}"#).unwrap();
    /// let gib = ByteCount::gib;
    /// spec.parts = vec![(DeviceId::Cuda(2), gib(8)), (DeviceId::Cuda(5), gib(4)), (DeviceId::Cpu, gib(1))];
    /// assert_eq!(spec.places(), [(DeviceId::Cuda(0), Some(gib(8))), (DeviceId::Cuda(1), Some(gib(4)))]);
    /// assert_eq!(spec.host_bytes(), gib(1));
    /// ```
    pub fn places(&self) -> Vec<(DeviceId, Option<ByteCount>)> {
        let mut gpus = 0;
        let mut places: Vec<(DeviceId, Option<ByteCount>)> = self
            .computing_parts()
            .map(|(device, bytes)| match device {
                DeviceId::Cuda(_) if !self.by_hand() => {
                    gpus += 1;
                    (DeviceId::Cuda(gpus - 1), Some(*bytes))
                }
                other => (other.clone(), Some(*bytes)),
            })
            .collect();
        if places.is_empty() {
            places.push((self.device.clone(), None));
        }
        places
    }

    /// Whether the worker was started from a command line: no memory was leased, and no GPU was hidden or renumbered.
    pub fn by_hand(&self) -> bool {
        self.generation == Generation(0)
    }

    /// Host memory of a worker that computes on another device: for a pinned ring, and for streamed layers that the
    /// host holds (RS-11). It is zero for a worker that computes on the host, whose bytes serve all purposes.
    pub fn host_bytes(&self) -> ByteCount {
        if self.device == DeviceId::Cpu {
            return ByteCount::ZERO;
        }
        self.parts.iter().filter(|(device, _)| *device == DeviceId::Cpu).map(|(_, bytes)| *bytes).sum()
    }

    fn computing_parts(&self) -> impl Iterator<Item = &(DeviceId, ByteCount)> {
        self.parts.iter().filter(|(device, _)| self.device == DeviceId::Cpu || *device != DeviceId::Cpu)
    }

    /// The start line, newline included.
    pub fn to_line(&self) -> Result<String, serde_json::Error> {
        let mut line = serde_json::to_string(self)?;
        line.push('\n');
        Ok(line)
    }

    /// Reads a start line.
    pub fn from_line(line: &str) -> Result<Self, WorkerSpecError> {
        if line.trim().is_empty() {
            return Err(WorkerSpecError::Closed);
        }
        serde_json::from_str(line).map_err(WorkerSpecError::Malformed)
    }
}

/// The parameters of `GET /health`, as its query states them: `?wait_ms=100`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthQuestion {
    /// The longest time for which a loading worker delays its answer, until it is ready. The coordinator thus notices
    /// readiness at once, without polling.
    pub wait: Duration,
}

impl HealthQuestion {
    const WAIT: &str = "wait_ms";

    /// The route with these parameters.
    pub fn path(self) -> String {
        format!("/health?{}={}", Self::WAIT, self.wait.as_millis())
    }

    /// Reads the query. Invalid parameters are ignored.
    pub fn read(query: Option<&str>) -> Self {
        let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        let wait = pairs.filter(|(name, _)| *name == Self::WAIT).find_map(|(_, value)| value.parse().ok());
        Self { wait: Duration::from_millis(wait.unwrap_or(0)) }
    }
}

/// The progress of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Readiness {
    /// The worker reads its weights. `GET /health` answers 503.
    Loading,
    /// The worker serves. `GET /health` answers 200.
    Ok,
}

/// The body of a worker's `GET /health`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerHealth {
    /// Whether the worker is loading or serving.
    pub status: Readiness,
    /// The slot's generation, as in the start line.
    pub generation: Generation,
    /// The spawn's second secret.
    pub proof: ReadyProof,
    /// The share of the weights read, 0 to 1.
    pub progress: f32,
    /// The context that the worker serves, in tokens; known when ready.
    #[serde(default)]
    pub context_length: Option<u64>,
    /// Bytes of weights that the worker holds; known when ready.
    #[serde(default)]
    pub weight_bytes: Option<u64>,
    /// The bytes that the worker holds on each device of [`WorkerSpec::parts`], by the same names, if they are known.
    #[serde(default)]
    pub held: Vec<(DeviceId, ByteCount)>,
    /// The most bytes that the worker will hold there, with all the keys and values that it may keep; known when ready.
    /// Its lease covers them from then on, used or not.
    #[serde(default)]
    pub may_hold: Vec<(DeviceId, ByteCount)>,
    /// The counts of the engine's work.
    #[serde(default)]
    pub engine: EngineStats,
    /// The cores that the worker computes with; `None` if it computes on another device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<WorkerCores>,
    /// The state of streaming; `None` where all layers are resident.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streaming: Option<StreamStats>,
    /// The worker's confinement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxState>,
}

/// The streamed layers of a worker, and the times of streaming since it started (RS-9). Seconds and bytes are sums.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct StreamStats {
    /// The number of layers that stay on the device.
    pub resident_layers: u32,
    /// The number of streamed layers.
    pub streamed_layers: u32,
    /// The bytes streamed in each step.
    pub step_bytes: u64,
    /// The number of blocks on the device at the same time.
    pub slots: u32,
    /// The store that layers are read from, and how it reads.
    pub store: String,
    /// The store's bytes per second when the model was loaded.
    pub store_bytes_per_second: f64,
    /// The number of steps done.
    pub steps: u64,
    /// The bytes placed on the device.
    pub bytes: u64,
    /// The time of reading.
    pub read_seconds: f64,
    /// The time of placing blocks on the device.
    pub place_seconds: f64,
    /// The time of computing.
    pub compute_seconds: f64,
    /// The time of waiting for weights.
    pub stall_seconds: f64,
    /// The time of the steps as a whole.
    pub wall_seconds: f64,
    /// The longer of reading and computing as a share of the time that both took together.
    pub overlap: f64,
    /// The bytes placed per second of the steps.
    pub bytes_per_second: f64,
}

/// Counts of an engine's work since it started. If `steps` does not change while `active > 0`, the engine hangs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineStats {
    /// The number of steps done.
    pub steps: u64,
    /// The number of sequences in the batch.
    pub active: u32,
    /// The number of sequences that wait for a place in the batch.
    pub waiting: u32,
}

/// The reason why a worker ended, as its exit code states. By it the coordinator decides between another try and
/// giving up the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerExit {
    /// The worker has ended in order, after SIGTERM or because the coordinator ended.
    Clean,
    /// The start line or the command line is wrong.
    BadSpec,
    /// The model's files are missing, unreadable, malformed or of an unknown kind: another try would fail too.
    BadModel,
    /// There is not enough memory for the model.
    OutOfMemory,
    /// A file that exists could not be read: the disk or the network failed, and may work later.
    ReadFailed,
    /// Another process listens on the port.
    PortInUse,
    /// The device is missing or failed for good, and the process cannot continue.
    DeviceLost,
}

impl WorkerExit {
    const TABLE: [(Self, i32); 7] = [
        (Self::Clean, 0),
        (Self::BadSpec, 64),
        (Self::BadModel, 65),
        (Self::OutOfMemory, 71),
        (Self::ReadFailed, 74),
        (Self::PortInUse, 75),
        (Self::DeviceLost, 76),
    ];

    /// The exit code.
    pub fn code(self) -> i32 {
        Self::TABLE.iter().find(|(exit, _)| *exit == self).map_or(1, |(_, code)| *code)
    }

    /// The meaning of an exit code, if it is a worker's.
    pub fn from_code(code: i32) -> Option<Self> {
        Self::TABLE.iter().find(|(_, c)| *c == code).map(|(exit, _)| *exit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> WorkerSpec {
        WorkerSpec {
            model: "guide".into(),
            category: Category::Llm,
            source: "/models/guide".into(),
            device: DeviceId::Cpu,
            parts: vec![(DeviceId::Cpu, ByteCount::gib(1))],
            port: 8300,
            generation: Generation(3),
            token: SpawnToken::from_bits(7),
            proof: SpawnToken::from_bits(8),
            context_length: None,
            max_concurrent: 4,
            residency: Residency::default(),
            params: BTreeMap::new(),
            chat_template: None,
            thinking: None,
            settings: BTreeMap::new(),
            text: TextLimits::default(),
            cpu_features: None,
            threads: None,
            speculation: Speculation::default(),
            draft: None,
            speech: None,
            voices: BTreeMap::new(),
            sandbox: SandboxMode::default(),
            parking: None,
        }
    }

    #[test]
    fn the_start_line_is_one_line_and_round_trips() {
        let line = spec().to_line().unwrap();
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(WorkerSpec::from_line(&line).unwrap(), spec());
    }

    #[test]
    fn rc_22_parts_become_places_by_the_numbers_the_worker_sees() {
        let gib = ByteCount::gib;
        let alone = spec();
        assert_eq!((alone.places(), alone.host_bytes()), (vec![(DeviceId::Cpu, Some(gib(1)))], ByteCount::ZERO));
        let by_hand = WorkerSpec { parts: Vec::new(), ..spec() };
        assert_eq!(by_hand.places(), [(DeviceId::Cpu, None)]);
        let parts = vec![(DeviceId::Cpu, gib(1)), (DeviceId::Cuda(3), gib(2)), (DeviceId::Cuda(7), gib(4))];
        let split = WorkerSpec { device: DeviceId::Cuda(0), parts, ..spec() };
        assert_eq!(split.places(), [(DeviceId::Cuda(0), Some(gib(2))), (DeviceId::Cuda(1), Some(gib(4)))]);
        assert_eq!(split.host_bytes(), gib(1));
        let by_hand = WorkerSpec { generation: Generation(0), ..split };
        assert_eq!(by_hand.places(), [(DeviceId::Cuda(3), Some(gib(2))), (DeviceId::Cuda(7), Some(gib(4)))]);
    }

    #[test]
    fn an_absent_or_broken_start_line_is_told_apart() {
        assert!(matches!(WorkerSpec::from_line(""), Err(WorkerSpecError::Closed)));
        assert!(matches!(WorkerSpec::from_line("{\"model\":1}"), Err(WorkerSpecError::Malformed(_))));
    }

    #[test]
    fn a_question_about_health_round_trips_and_nonsense_asks_for_nothing() {
        let question = HealthQuestion { wait: Duration::from_millis(250) };
        let path = question.path();
        assert_eq!(path, "/health?wait_ms=250");
        assert_eq!(HealthQuestion::read(path.split_once('?').map(|(_, query)| query)), question);
        assert_eq!(HealthQuestion::read(Some("a=b&wait_ms=7")).wait, Duration::from_millis(7));
        for nothing in [None, Some(""), Some("wait_ms"), Some("wait_ms=-1"), Some("wait_ms=soon")] {
            assert_eq!(HealthQuestion::read(nothing), HealthQuestion::default(), "{nothing:?}");
        }
    }

    #[test]
    fn exit_codes_round_trip() {
        for (exit, code) in WorkerExit::TABLE {
            assert_eq!(exit.code(), code);
            assert_eq!(WorkerExit::from_code(code), Some(exit));
        }
        assert_eq!(WorkerExit::from_code(1), None);
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert!(!format!("{:?}", spec()).contains(spec().token.reveal()));
        assert!(spec().token.matches(spec().token.reveal()));
        assert!(!spec().token.matches("0"));
    }
}
