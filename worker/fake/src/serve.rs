//! The worker's HTTP server on loopback: accept loop, routes, drain.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use model_boss_fake_worker::behaviour::{Behaviour, Malformed, Report};
use model_boss_protocol::{
    ApiError, ErrorCode, HealthQuestion, Readiness, WorkerHealth, WorkerOrder, WorkerSpec, headers, refuse_demands,
};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{SetOnce, mpsc, watch};
use tokio::time::Instant;

use crate::canned::{CannedAnswer, CannedBody, events, refuse, whole};
use crate::control::Control;
use crate::decode::Decode;
use crate::echo::echo;
use crate::failure::{FakeFailure, exit_now};
use crate::fake_worker::FakeWorker;
use crate::hearing;
use crate::llama_server;
use crate::painting::paint;
use crate::received::{BODY_LIMIT, Received, receive};
use crate::rough::{answer_badly, answer_raw};
use crate::shapes::{Body, CompletionRoute, FakeShape, Manner};
use crate::speech::SpeechBody;
use crate::whole_answer::WholeAnswers;

/// The beginning of the path of a request's progress.
const PROGRESS: &str = "/progress/";

/// Listens, loads, serves until SIGTERM, and finishes running requests.
pub(crate) async fn serve(
    spec: Arc<WorkerSpec>,
    behaviour: Arc<Behaviour>,
    control: Arc<Control>,
    manner: Manner,
    mut orders: mpsc::UnboundedReceiver<WorkerOrder>,
) -> Result<(), FakeFailure> {
    let port = spec.port;
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(|source| FakeFailure::Port { port, source })?;
    let mut terminate = signal(SignalKind::terminate()).map_err(FakeFailure::Runtime)?;
    let worker = Arc::new(FakeWorker {
        spec,
        behaviour,
        control,
        manner,
        counters: Arc::default(),
        answers: WholeAnswers::default(),
        ready: SetOnce::new(),
        started: Instant::now(),
    });
    tokio::spawn(load(Arc::clone(&worker)));

    // Each connection holds a receiver: when all are dropped, all requests are answered.
    let (draining, drain) = watch::channel(false);
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    tokio::spawn(connection(stream, Arc::clone(&worker), drain.clone()));
                }
            }
            Some(WorkerOrder::Cpu(share)) = orders.recv() => worker.control.report(&Report::Share { share }),
            _ = terminate.recv() => {
                worker.control.report(&Report::Terminating);
                if !worker.behaviour.ignore_sigterm {
                    break;
                }
            }
        }
    }
    drop((listener, drain));
    _ = draining.send(true);
    draining.closed().await;
    Ok(())
}

/// Simulates the reading of weights, takes real memory, and becomes ready or ends.
async fn load(worker: Arc<FakeWorker>) {
    let behaviour = &worker.behaviour;
    let weights = vec![1_u8; usize::try_from(behaviour.memory).unwrap_or(usize::MAX)];
    tokio::time::sleep(Duration::from_millis(behaviour.load_ms)).await;
    if behaviour.hold_load {
        worker.control.finish_load().await;
    }
    if let Some(code) = behaviour.load_exit {
        if !behaviour.load_message.is_empty() {
            eprintln!("{}", behaviour.load_message);
        }
        exit_now(code);
    }
    // The worker becomes ready only once.
    let _ = worker.ready.set(());
    worker.control.report(&Report::Ready);
    // The memory is held until the process ends, like the weights of a real worker.
    std::future::pending::<()>().await;
    drop(weights);
}

async fn connection(stream: TcpStream, worker: Arc<FakeWorker>, mut drain: watch::Receiver<bool>) {
    _ = stream.set_nodelay(true);
    if let Some(malformed @ (Malformed::NotHttp | Malformed::Hangup | Malformed::CutBody)) = worker.behaviour.malformed
        && asks_for_inference(&stream).await
    {
        return answer_badly(stream, malformed).await;
    }
    if let Some(raw) = &worker.behaviour.raw
        && asks_for_inference(&stream).await
    {
        return answer_raw(stream, raw).await;
    }
    let service = service_fn(|request| {
        let worker = Arc::clone(&worker);
        async move { Ok::<_, Infallible>(answer(request, worker).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = drain.wait_for(|draining| *draining) => connection.as_mut().graceful_shutdown(),
    }
    _ = connection.await;
}

/// Peeks at the first bytes of a connection, so that they can be read again.
async fn asks_for_inference(stream: &TcpStream) -> bool {
    let mut first = [0; 4];
    matches!(stream.peek(&mut first).await, Ok(n) if n > 0) && first.starts_with(b"POST")
}

async fn answer(request: Request<Incoming>, worker: Arc<FakeWorker>) -> CannedAnswer {
    let foreign = worker.manner == Manner::LlamaServer;
    if foreign && request.uri().path() == "/health" {
        return closing(health(&worker, HealthQuestion::default()).await, &worker);
    }
    let bearer = request.headers().get(headers::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if !bearer.and_then(|value| value.strip_prefix("Bearer ")).is_some_and(|token| worker.spec.token.matches(token)) {
        return worker.refuse(&ApiError::new(ErrorCode::InvalidApiKey, "this worker answers its coordinator only"));
    }
    let id = request.headers().get(headers::REQUEST_ID).cloned();
    let mut answer = match (request.method(), request.uri().path()) {
        (&Method::GET, "/health") => health(&worker, HealthQuestion::read(request.uri().query())).await,
        (&Method::GET, "/v1/models") => whole(StatusCode::OK, models(&worker)),
        (&Method::GET, "/stats") => whole(StatusCode::OK, worker.counters.to_json().to_string().into()),
        (&Method::GET, "/metrics") => metrics(&worker),
        (&Method::POST, "/v1/chat/completions") => infer(request, &worker, CompletionRoute::Chat).await,
        (&Method::POST, "/v1/completions") => infer(request, &worker, CompletionRoute::Completion).await,
        (&Method::POST, "/tokenize") => read_json(request, &worker, llama_server::tokens).await,
        (&Method::POST, "/completion") if foreign => infer(request, &worker, CompletionRoute::LlamaCompletion).await,
        (&Method::POST, "/v1/embeddings") => embed(request, &worker).await,
        (&Method::POST, "/v1/audio/speech") => speak(request, &worker).await,
        (&Method::POST, "/v1/images/generations" | "/v1/images/edits") => paint(request, &worker).await,
        (&Method::POST, "/v1/rerank") => read_json(request, &worker, llama_server::rerank).await,
        (&Method::POST, "/v1/audio/transcriptions" | "/v1/audio/translations") => hear(request, &worker).await,
        (&Method::GET, path) if path.starts_with(PROGRESS) => worker.answers.progress(&path[PROGRESS.len()..]),
        _ => refuse(&ApiError::new(ErrorCode::NotFound, "no such route")),
    };
    if let Some(id) = id {
        answer.headers_mut().insert(headers::REQUEST_ID, id);
    }
    closing(answer, &worker)
}

/// Marks an answer to close its connection if the behaviour gives invalid answers, which take effect per connection.
fn closing(mut answer: CannedAnswer, worker: &FakeWorker) -> CannedAnswer {
    if worker.behaviour.malformed.is_some() || worker.behaviour.raw.is_some() {
        answer.headers_mut().insert(header::CONNECTION, http::HeaderValue::from_static("close"));
    }
    answer
}

async fn health(worker: &FakeWorker, question: HealthQuestion) -> CannedAnswer {
    tokio::time::sleep(Duration::from_millis(worker.behaviour.health_ms)).await;
    // Whether it became ready or the time ran out is seen below.
    let _ = tokio::time::timeout(question.wait, worker.ready.wait()).await;
    let ready = worker.ready.get().is_some();
    let proof = if worker.behaviour.wrong_proof { worker.spec.token.clone() } else { worker.spec.proof.clone() };
    let health = WorkerHealth {
        status: if ready { Readiness::Ok } else { Readiness::Loading },
        generation: worker.spec.generation,
        proof,
        progress: worker.progress(),
        context_length: ready.then(|| worker.context_length()),
        weight_bytes: ready.then_some(worker.behaviour.memory),
        held: worker.held(),
        may_hold: Vec::new(),
        engine: worker.counters.engine(),
        cores: worker.cores(),
        streaming: worker.streaming(ready),
        sandbox: None,
    };
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if worker.manner == Manner::LlamaServer {
        return whole(status, llama_server::health(ready).to_string().into());
    }
    whole(status, serde_json::to_vec(&health).unwrap_or_default().into())
}

fn models(worker: &FakeWorker) -> Bytes {
    let model = json!({ "id": worker.spec.model, "object": "model", "created": 0, "owned_by": "model-boss" });
    json!({ "object": "list", "data": [model] }).to_string().into()
}

fn metrics(worker: &FakeWorker) -> CannedAnswer {
    let mut text = String::new();
    if let Some(counts) = worker.counters.to_json().as_object() {
        for (name, value) in counts {
            text += &format!("fake_worker_{name} {value}\n");
        }
    }
    let mut answer = whole(StatusCode::OK, text.into());
    answer.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain; version=0.0.4"));
    answer
}

/// Vectors, unless a text has more words than the context.
async fn embed(request: Request<Incoming>, worker: &FakeWorker) -> CannedAnswer {
    let limit = worker.context_length();
    let vectors = |body: &Value, model: &str| match llama_server::longest(body) {
        words if words > limit => Err(llama_server::batch_overflow(words, limit)),
        _ => Ok(llama_server::embeddings(body, model)),
    };
    try_json(request, worker, vectors).await
}

/// The text of sound.
async fn hear(request: Request<Incoming>, worker: &FakeWorker) -> CannedAnswer {
    let (parts, body) = request.into_parts();
    worker.counters.next_request();
    let Ok(body) = Limited::new(body, BODY_LIMIT).collect().await else {
        return worker.refuse(&ApiError::new(ErrorCode::RequestTooLarge, "the body is over the limit"));
    };
    match hearing::transcript(&parts.headers, &body.to_bytes()) {
        Ok((status, kind, text)) => {
            let mut answer = whole(status, text);
            answer.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
            answer
        }
        Err(error) => worker.refuse(&error),
    }
}

/// A route that answers at once.
async fn read_json(request: Request<Incoming>, worker: &FakeWorker, make: fn(&Value, &str) -> Value) -> CannedAnswer {
    try_json(request, worker, |body, model| Ok(make(body, model))).await
}

/// A route that answers at once, or refuses in llama-server's shape with the status in its `code`.
async fn try_json(
    request: Request<Incoming>,
    worker: &FakeWorker,
    make: impl FnOnce(&Value, &str) -> Result<Value, Value>,
) -> CannedAnswer {
    let Ok(body) = Limited::new(request.into_body(), BODY_LIMIT).collect().await else {
        return worker.refuse(&ApiError::new(ErrorCode::RequestTooLarge, "the body is over the limit"));
    };
    let body: Value = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
    match make(&body, worker.spec.model.as_str()) {
        Ok(answer) => whole(StatusCode::OK, answer.to_string().into()),
        Err(error) => {
            let status = error["error"]["code"].as_u64().and_then(|code| u16::try_from(code).ok());
            let status = status.and_then(|code| StatusCode::from_u16(code).ok());
            whole(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), error.to_string().into())
        }
    }
}

/// Speaks a text: each of its words is a token.
async fn speak(request: Request<Incoming>, worker: &FakeWorker) -> CannedAnswer {
    let Received { number, bytes, .. } = match receive(request, worker).await {
        Ok(received) => received,
        Err(answer) => return answer,
    };
    let body: SpeechBody = match serde_json::from_slice(&bytes) {
        Ok(body) => body,
        Err(error) => return worker.refuse(&ApiError::new(ErrorCode::InvalidRequest, error.to_string())),
    };
    let input = match body.input() {
        Ok(input) => input.to_owned(),
        Err(error) => return worker.refuse(&error),
    };
    let words = input.split_whitespace().count() as u64;
    let decode = worker.decode((number, words, None), Some(&input));
    let kind = http::HeaderValue::from_static(body.content_type());
    let mut answer = Response::new(CannedBody::Frames(body.speak(decode, words)));
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

async fn infer(request: Request<Incoming>, worker: &FakeWorker, route: CompletionRoute) -> CannedAnswer {
    let Received { number, headers, bytes } = match receive(request, worker).await {
        Ok(received) => received,
        Err(answer) => return answer,
    };
    let body: Body = match serde_json::from_slice(&bytes) {
        Ok(body) => body,
        Err(error) => {
            return worker.refuse(&ApiError::new(ErrorCode::InvalidRequest, format!("the body is malformed: {error}")));
        }
    };
    if worker.manner == Manner::Worker
        && let Err(error) = refuse_demands_in(&bytes)
    {
        return worker.refuse(&error);
    }
    let Some(prompt_tokens) = body.prompt_tokens(route) else {
        let field = if route == CompletionRoute::Chat { "messages" } else { "prompt" };
        return worker.refuse(&ApiError::invalid(field, format!("'{field}' is missing")));
    };
    if prompt_tokens >= worker.context_length() {
        return worker.refuse_length(prompt_tokens);
    }
    let echo = worker.behaviour.echo.then(|| echo(&headers, &bytes));
    let decode = worker.decode((number, prompt_tokens, body.limit()), echo.as_deref());
    let created = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    let id = format!("{}-{number}", worker.spec.generation);
    let shape = FakeShape::new((worker.manner, route), &id, &worker.spec.model, created, &body, prompt_tokens);
    let asked = headers.get(headers::REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or_default();
    if body.stream {
        streamed(decode, shape, body.wants_usage())
    } else {
        worker.answers.make(asked, decode, shape).await
    }
}

/// Refuses a field that asks for anything but a plain answer.
fn refuse_demands_in(body: &[u8]) -> Result<(), ApiError> {
    let fields: BTreeMap<String, &RawValue> = serde_json::from_slice(body).unwrap_or_default();
    refuse_demands(|name| fields.get(name).map(|value| value.get()))
}

fn streamed(mut decode: Decode, shape: FakeShape, with_usage: bool) -> CannedAnswer {
    let (frames, body) = mpsc::channel(16);
    tokio::spawn(async move {
        if let Some(first) = shape.first_chunk()
            && frames.send(first).await.is_err()
        {
            return;
        }
        loop {
            let frame = tokio::select! {
                biased;
                () = frames.closed() => return,
                token = decode.next() => token.map(|token| shape.token_chunk(token)),
            };
            let Some(frame) = frame else { break };
            if frames.send(frame).await.is_err() {
                return;
            }
        }
        let (finish, cost) = decode.finish();
        _ = frames.send(shape.last_chunks(finish, cost, with_usage)).await;
    });
    events(body)
}
