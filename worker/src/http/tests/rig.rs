//! A worker on a real socket with a scripted decoder in it, and a client that sees every byte.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use model_boss_engine::Decoder;
use model_boss_engine::fake::{FakeControl, FakeDecoder, Script, byte_tokenizer_json, words};
use model_boss_protocol::{
    Category, CpuShare, DeviceId, Generation, InstructionSet, SandboxMode, SandboxState, SpawnToken, Speculation,
    TextLimits, Thinking, WorkerSpec,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

use super::embeddings::CountingEncoder;
use super::judges::Judge;
use super::transcripts::scripted;
use super::vision::SeeingEncoder;
use crate::backend::{ModelLoaders, Reranker};
use crate::defaults::RequestDefaults;
use crate::engine_thread::{self, WorkerHelpers};
use crate::failure::LoadFailure;
use crate::http::HttpServer;
use crate::painting::fake_painter::{FakePainter, FakePainterControl};
use crate::state::{Access, WorkerState};
use crate::text::start_threads;
use crate::threads::ComputeThreads;

/// Longer than anything here takes on a slow machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
{% for c in m.tool_calls %}C:{{ c.function.arguments | tojson }}{% endfor %}<|im_end|>\n{% endfor %}\
{% if tools %}T:{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

pub(super) struct Rig {
    pub(super) address: SocketAddr,
    pub(super) worker: Arc<WorkerState>,
    pub(super) control: FakeControl,
    /// Of a model that paints.
    pub(super) painter: FakePainterControl,
    pub(super) server: HttpServer,
    pub(super) ended: oneshot::Receiver<LoadFailure>,
    /// The orders to the worker.
    pub(super) share: watch::Sender<Option<CpuShare>>,
    _folder: tempfile::TempDir,
}

pub(super) struct Setup {
    pub(super) script: Script,
    pub(super) context: usize,
    pub(super) params: Value,
    pub(super) template: Option<&'static str>,
    pub(super) thinking: Option<Thinking>,
    pub(super) category: Category,
    /// Of a model that judges.
    pub(super) labels: usize,
    pub(super) token: Option<SpawnToken>,
    /// Loading waits for this.
    pub(super) loading: Option<std::sync::mpsc::Receiver<()>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            script: Script::Answer(words("hello")),
            context: 400,
            params: json!({"temperature": 0}),
            template: Some(TEMPLATE),
            thinking: None,
            labels: 1,
            category: Category::Llm,
            token: None,
            loading: None,
        }
    }
}

impl Setup {
    pub(super) fn saying(text: &str) -> Self {
        Self { script: Script::Answer(words(text)), ..Self::default() }
    }

    pub(super) async fn start(self) -> Rig {
        self.start_gated(|_| ()).await.0
    }

    /// `gate` may access the decoder before it moves to the engine's thread.
    pub(super) async fn start_gated<T>(self, gate: impl FnOnce(&mut FakeDecoder) -> T) -> (Rig, T) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tokenizer.json"), byte_tokenizer_json()).unwrap();
        let config = json!({"eos_token": "</s>", "chat_template": self.template});
        fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [257, 259]}"#).unwrap();
        let params: BTreeMap<String, Value> = serde_json::from_value(self.params).unwrap();
        let spec = WorkerSpec {
            model: "test/tiny".into(),
            category: self.category,
            source: folder.path().to_owned(),
            device: DeviceId::Cpu,
            parts: Vec::new(),
            port: 0,
            generation: Generation(3),
            token: SpawnToken::from_bits(1),
            proof: SpawnToken::from_bits(2),
            context_length: None,
            max_concurrent: 4,
            residency: Default::default(),
            params,
            chat_template: None,
            thinking: self.thinking,
            settings: [].into(),
            text: TextLimits::default(),
            cpu_features: None,
            threads: None,
            speculation: Speculation::default(),
            draft: None,
            speech: None,
            voices: BTreeMap::new(),
            sandbox: SandboxMode::default(),
            parking: None,
        };
        let defaults = RequestDefaults::new(&spec.params).unwrap();
        let access = self.token.map_or(Access::Open, Access::Token);
        let (share, shares) = watch::channel(None);
        let computing = (InstructionSet::Portable, ComputeThreads::anywhere(3), shares);
        let worker = Arc::new(WorkerState::new(spec, access, defaults, computing, SandboxState::off("a test")));
        let mut decoder = FakeDecoder::new(self.script, self.context);
        let (control, gate) = (decoder.control(), gate(&mut decoder));
        let (loaded, ready) = oneshot::channel();
        let (loading, labels) = (self.loading, self.labels);
        let painting = FakePainter::new();
        let painter = painting.control();
        let wait = loading.is_none();
        let load = move |_: &WorkerSpec, progress: &mut dyn FnMut(f32)| {
            progress(0.5);
            if let Some(loading) = loading {
                loading.recv().unwrap();
            }
            let _ = loaded.send(());
            Ok(Box::new(decoder) as Box<dyn Decoder>)
        };
        let loaders = ModelLoaders {
            decoder: Box::new(load),
            draft: Box::new(|_, _| panic!("no worker of these tests has a draft model")),
            encoder: Box::new(|_, _| Ok(Box::new(CountingEncoder::new()))),
            towers: Box::new(|_, _| Ok(Box::new(SeeingEncoder::new()))),
            speech: Box::new(|_, _| Ok(Box::new(scripted()))),
            reranker: Box::new(move |_, _| Ok(Reranker::Encoder(Box::new(Judge::new(labels))))),
            speaker: Box::new(|_, _| panic!("no worker of these tests speaks")),
            painter: Box::new(|_, _| Ok(Box::new(painting))),
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let ended = engine_thread::start(Arc::clone(&worker), loaders, WorkerHelpers::Texts(start_threads())).unwrap();
        let server = HttpServer::start(listener, Arc::clone(&worker));
        let rig = Rig { address, worker, control, painter, server, ended, share, _folder: folder };
        if wait {
            if rig.worker.spec.category == Category::Llm {
                ready.await.unwrap();
            }
            rig.until(|rig| rig.worker.is_ready()).await;
        }
        (rig, gate)
    }
}

impl Rig {
    /// Waits until something is so.
    pub(super) async fn until(&self, so: impl Fn(&Self) -> bool) {
        let poll = async {
            while !so(self) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, poll).await.expect("what was waited for came");
    }

    /// The same, with one step of the decoder allowed at each look.
    pub(super) async fn stepping_until(&self, permits: &Sender<()>, so: impl Fn(&Self) -> bool) {
        let poll = async {
            while !so(self) {
                let _ = permits.send(());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, poll).await.expect("what was waited for came");
    }

    /// Opens a connection and sends a request.
    pub(super) async fn open(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: worker\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        stream
    }

    pub(super) async fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let mut stream = self.open(method, path, headers, body).await;
        let mut bytes = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("an answer came").unwrap();
        Answer::read(&bytes)
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, "", body.to_string().as_bytes()).await
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "", b"").await
    }

    pub(super) async fn chat(&self, extra: Value) -> Answer {
        self.post("/v1/chat/completions", &chat(extra)).await
    }
}

/// A chat request with these fields.
pub(super) fn chat(extra: Value) -> Value {
    let mut body = json!({"model": "any", "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: BTreeMap<String, String>,
    /// The body; of chunked ones each chunk apart.
    pub(super) chunks: Vec<String>,
}

impl Answer {
    fn read(bytes: &[u8]) -> Self {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: BTreeMap<String, String> = lines
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect();
        let chunked = headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked");
        let chunks = if chunked { dechunked(body) } else { vec![body.to_owned()] };
        Self { status, headers, chunks }
    }

    pub(super) fn text(&self) -> String {
        self.chunks.concat()
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text()).unwrap()
    }

    /// The objects of a stream, `[DONE]` left out, which has to be there.
    pub(super) fn events(&self) -> Vec<Value> {
        assert_eq!(self.chunks.last().unwrap(), "data: [DONE]\n\n");
        self.chunks[..self.chunks.len() - 1].iter().map(|chunk| event(chunk)).collect()
    }

    /// An error as `(status, code, param)`.
    pub(super) fn error(&self) -> (u16, String, String) {
        let body = self.json();
        assert_eq!(body["source"], "worker", "{body}");
        assert!(body["error"]["message"].as_str().unwrap().len() > 10, "{body}");
        assert!(body["error"]["type"].is_string(), "{body}");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (self.status, text(&body["error"]["code"]), text(&body["error"]["param"]))
    }
}

/// The object of one server-sent event, which is exactly one HTTP chunk.
pub(super) fn event(chunk: &str) -> Value {
    let data = chunk.strip_prefix("data: ").and_then(|rest| rest.strip_suffix("\n\n")).expect(chunk);
    assert!(!data.contains('\n'), "one event in a chunk: {chunk}");
    serde_json::from_str(data).unwrap()
}

fn dechunked(mut body: &str) -> Vec<String> {
    let mut chunks = Vec::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            break;
        }
        chunks.push(rest[..length].to_owned());
        body = &rest[length + 2..];
    }
    chunks
}
