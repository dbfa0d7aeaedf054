//! A fake coordinator that gives prepared answers, on a port of its own.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A request that it received.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) line: String,
    pub key: Option<String>,
    pub(super) body: Value,
}

/// One answer: its status and the pieces of its body. Without an end the connection stays open after the last piece.
pub(super) struct ScriptedAnswer {
    pub(super) status: u16,
    pub(super) pieces: Vec<String>,
    pub(super) ends: bool,
}

/// A fake coordinator.
pub(super) struct FakeCoordinator {
    pub(super) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    /// The token is cancelled when a client closes a connection whose answer has no end.
    pub(super) left: CancellationToken,
}

impl FakeCoordinator {
    /// A coordinator that gives these answers, one per request.
    pub(super) async fn answering(answers: Vec<ScriptedAnswer>) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let (asked, left) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
        let (seen, gone) = (Arc::clone(&asked), left.clone());
        let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, gone, answers) = (Arc::clone(&seen), gone.clone(), Arc::clone(&answers));
                let service = service_fn(move |request| {
                    let answer = answers.lock().ok().and_then(|mut answers| answers.pop_front());
                    answer_one(request, answer, Arc::clone(&seen), gone.clone())
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(Self { url, asked, left })
    }

    /// The requests so far.
    pub(super) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().map(|asked| asked.clone()).unwrap_or_default()
    }
}

impl ScriptedAnswer {
    /// An answer with a whole JSON body.
    pub(super) fn json(status: u16, value: &Value) -> Self {
        Self { status, pieces: vec![value.to_string()], ends: true }
    }

    /// A stream that ends after these pieces.
    pub(super) fn stream(pieces: &[&str]) -> Self {
        Self { status: 200, pieces: pieces.iter().map(|piece| (*piece).to_owned()).collect(), ends: true }
    }
}

async fn answer_one(
    request: Request<Incoming>,
    answer: Option<ScriptedAnswer>,
    seen: Arc<Mutex<Vec<Asked>>>,
    gone: CancellationToken,
) -> Result<Response<ScriptedPieces>, Infallible> {
    let line = format!("{} {}", request.method(), request.uri());
    let key = request.headers().get("authorization").and_then(|key| Some(key.to_str().ok()?.to_owned()));
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    if let Ok(mut seen) = seen.lock() {
        seen.push(Asked { line, key, body: serde_json::from_slice(&body).unwrap_or_default() });
    }
    let ScriptedAnswer { status, pieces, ends } =
        answer.unwrap_or(ScriptedAnswer { status: 500, pieces: Vec::new(), ends: true });
    let (sender, receiver) = mpsc::unbounded_channel();
    for piece in pieces {
        // Sending cannot fail: the receiver is dropped below.
        let _ = sender.send(Bytes::from(piece));
    }
    if !ends {
        tokio::spawn(async move {
            sender.closed().await;
            gone.cancel();
        });
    }
    let mut response = Response::new(ScriptedPieces(receiver));
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
    Ok(response)
}

/// A channel as a body.
struct ScriptedPieces(mpsc::UnboundedReceiver<Bytes>);

impl Body for ScriptedPieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
    }
}
