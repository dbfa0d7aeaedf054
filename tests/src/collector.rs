//! A collector of OpenTelemetry's traces on loopback, which decodes what it gets. A test may make it hang or refuse.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::boss::Launch;
use crate::wait::{PATIENCE, until};

/// A collector, which answers until this value and its runtime are gone.
#[derive(Clone)]
pub struct Collector {
    address: SocketAddr,
    got: Arc<Mutex<Collected>>,
}

#[derive(Default)]
struct Collected {
    spans: Vec<CollectedSpan>,
    bodies: Vec<Bytes>,
    headers: Vec<HeaderMap>,
    mode: CollectorMode,
}

/// How a collector answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CollectorMode {
    /// It takes every span.
    #[default]
    Takes,
    /// It reads requests and never answers.
    Hangs,
    /// It answers with this status.
    Refuses(u16),
}

/// A span, as it was sent.
#[derive(Clone, Debug)]
pub struct CollectedSpan {
    /// The name.
    pub name: String,
    /// The trace, in hexadecimal digits.
    pub trace: String,
    /// The span's own number, in hexadecimal digits.
    pub id: String,
    /// The parent's number; empty without one.
    pub parent: String,
    /// The kind, as OTLP numbers it: 1 internal, 2 server, 3 client.
    pub kind: i32,
    /// The beginning and the end in nanoseconds since 1970.
    pub times: (u64, u64),
    /// Whether the status says that it failed.
    pub failed: bool,
    /// The attributes.
    pub attributes: BTreeMap<String, Value>,
    /// The events with their attributes.
    pub events: Vec<(String, BTreeMap<String, Value>)>,
    /// The attributes of the process that sent it.
    pub resource: BTreeMap<String, Value>,
}

impl Collector {
    /// Starts a collector.
    pub async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let collector = Self { address: listener.local_addr().unwrap(), got: Arc::default() };
        let own = collector.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let collector = own.clone();
                let service = service_fn(move |request| {
                    let collector = collector.clone();
                    async move { Ok::<_, Infallible>(collector.answer(request).await) }
                });
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(async move { http.serve_connection(TokioIo::new(stream), service).await });
            }
        });
        collector
    }

    /// The address to configure.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Configures a coordinator to send its traces here, soon after they end.
    pub fn receives_from(&self, launch: &mut Launch) {
        launch.command.args(["--otlp-endpoint", &self.url()]).env("OTEL_BSP_SCHEDULE_DELAY", "20");
    }

    /// Changes how it answers.
    pub fn set(&self, mode: CollectorMode) {
        self.got.lock().unwrap().mode = mode;
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<CollectedSpan> {
        self.got.lock().unwrap().spans.clone()
    }

    /// The bytes of all requests so far.
    pub fn bodies(&self) -> Vec<Bytes> {
        self.got.lock().unwrap().bodies.clone()
    }

    /// The headers of all requests so far.
    pub fn headers(&self) -> Vec<HeaderMap> {
        self.got.lock().unwrap().headers.clone()
    }

    /// Waits for the request that `wanted` accepts to end; returns all spans of its trace, its own first.
    pub async fn trace(&self, wanted: impl Fn(&CollectedSpan) -> bool) -> Vec<CollectedSpan> {
        let look = async || {
            let all = self.spans();
            let request = all.iter().find(|span| span.kind == 2 && wanted(span))?.clone();
            let others = all.into_iter().filter(|span| span.trace == request.trace && span.id != request.id);
            Some([request.clone()].into_iter().chain(others).collect())
        };
        // A request's span ends after those within it, and spans are sent in the order in which they end.
        until(PATIENCE, "a trace arrives", look).await
    }

    async fn answer(&self, request: http::Request<hyper::body::Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let mode = {
            let mut got = self.got.lock().unwrap();
            got.headers.push(head.headers.clone());
            got.bodies.push(body.clone());
            if got.mode == CollectorMode::Takes {
                assert_eq!(head.uri.path(), "/v1/traces");
                assert_eq!(head.headers["content-type"], "application/x-protobuf");
                got.spans.extend(decoded(&body));
            }
            got.mode
        };
        let status = match mode {
            CollectorMode::Takes => 200,
            CollectorMode::Hangs => std::future::pending().await,
            CollectorMode::Refuses(status) => status,
        };
        Response::builder().status(status).body(Full::default()).unwrap()
    }
}

impl CollectedSpan {
    /// The value of an attribute; `null` without one.
    pub fn get(&self, name: &str) -> Value {
        self.attributes.get(name).cloned().unwrap_or_default()
    }
}

fn decoded(body: &[u8]) -> Vec<CollectedSpan> {
    let request = ExportTraceServiceRequest::decode(body).expect("the body is OTLP");
    let of_resource = request.resource_spans.into_iter().flat_map(|group| {
        let resource = attributes(group.resource.unwrap_or_default().attributes);
        let spans = group.scope_spans.into_iter().flat_map(|scope| scope.spans);
        spans.map(move |span| (resource.clone(), span)).collect::<Vec<_>>()
    });
    of_resource.map(|(resource, span)| collected(resource, span)).collect()
}

fn collected(resource: BTreeMap<String, Value>, span: Span) -> CollectedSpan {
    CollectedSpan {
        name: span.name,
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        kind: span.kind,
        times: (span.start_time_unix_nano, span.end_time_unix_nano),
        failed: span.status.is_some_and(|status| status.code == 2),
        attributes: attributes(span.attributes),
        events: span.events.into_iter().map(|event| (event.name, attributes(event.attributes))).collect(),
        resource,
    }
}

fn attributes(pairs: Vec<KeyValue>) -> BTreeMap<String, Value> {
    pairs.into_iter().map(|pair| (pair.key, value(pair.value))).collect()
}

fn value(any: Option<AnyValue>) -> Value {
    match any.and_then(|any| any.value) {
        Some(Any::StringValue(text)) => text.into(),
        Some(Any::IntValue(number)) => number.into(),
        Some(Any::DoubleValue(number)) => json!(number),
        Some(Any::BoolValue(yes)) => yes.into(),
        other => panic!("an attribute of an unexpected type: {other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
