//! The spans of one request: the request itself, its waits in the queue with the loads that they were for, the calls of
//! workers or providers, and in a call the reading of the prompt and the writing of the answer.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use http::HeaderMap;
use opentelemetry::trace::{Span as _, SpanBuilder, SpanContext, SpanKind, Status, Tracer};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_sdk::trace::{SdkTracer, Span};

use crate::context::{inject, parent, within};
use crate::facts::{AnswerFacts, AskedFacts, PlaceFacts, RequestHead};
use crate::names;
use crate::parts::work_parts;

/// The status of a request whose client went away, and its error type.
const CLIENT_GONE: (u16, &str) = (499, "client_gone");

/// The longest text of an attribute that a client or a model's name has a part in, in characters.
const MAX_TEXT: usize = 256;

/// The trace of a request, shared by its owners; the last one ends it. Without traces it is empty, and every call
/// returns at once.
#[derive(Clone, Debug, Default)]
pub struct RequestTrace(Option<Arc<Mutex<OpenSpans>>>);

/// The spans that have not ended.
struct OpenSpans {
    tracer: SdkTracer,
    request: Span,
    queue: Option<Span>,
    call: Option<OpenCall>,
    /// How often the request was sent to a worker or provider.
    calls: i64,
    /// The kind of the request, in OpenTelemetry's words.
    operation: &'static str,
    /// The code of the error that ends the request.
    error: Option<&'static str>,
    /// Whether an account of the request will end it; until then its route does.
    has_account: bool,
    ended: bool,
}

/// A request at a worker or a provider.
struct OpenCall {
    span: Span,
    begun: SystemTime,
    is_local: bool,
}

impl RequestTrace {
    pub(crate) fn begin(tracer: &SdkTracer, head: &RequestHead<'_>) -> Self {
        let builder = SpanBuilder::from_name(format!("{} {}", head.method, head.route))
            .with_kind(SpanKind::Server)
            .with_attributes([
                KeyValue::new(names::HTTP_METHOD, head.method.to_string()),
                KeyValue::new(names::HTTP_ROUTE, head.route),
                KeyValue::new(names::REQUEST_ID, short(head.id)),
            ]);
        let request = tracer.build_with_context(builder, &parent(head.headers));
        Self(Some(Arc::new(Mutex::new(OpenSpans {
            tracer: tracer.clone(),
            request,
            queue: None,
            call: None,
            calls: 0,
            operation: "chat",
            error: None,
            has_account: false,
            ended: false,
        }))))
    }

    /// Whether there are traces at all.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether somebody will see this trace: facts that cost something are gathered only then.
    pub fn is_recording(&self) -> bool {
        self.open().is_some_and(|open| open.request.is_recording())
    }

    /// Notes the wishes of the request.
    pub fn asked(&self, facts: &AskedFacts<'_>) {
        let Some(mut open) = self.open() else { return };
        open.operation = operation(facts.path);
        let operation = open.operation;
        open.request.set_attributes([
            KeyValue::new(names::OPERATION, operation),
            KeyValue::new(names::REQUEST_MODEL, short(facts.model)),
            KeyValue::new(names::REQUEST_STREAM, facts.is_stream),
            KeyValue::new(names::CLIENT, short(facts.client)),
        ]);
        open.request.set_attributes(facts.priority.map(|priority| KeyValue::new(names::PRIORITY, i64::from(priority))));
    }

    /// Begins a wait in the queue. From now on the request's account ends the trace.
    pub fn queued(&self) {
        let Some(mut open) = self.open() else { return };
        open.has_account = true;
        let builder = SpanBuilder::from_name("queue").with_kind(SpanKind::Internal);
        open.queue = Some(open.tracer.build_with_context(builder, &within(open.request.span_context())));
    }

    /// Notes the reason of the wait: a word, and a sentence that names models and devices.
    pub fn waits(&self, reason: &'static str, detail: String) {
        let Some(mut open) = self.open() else { return };
        let facts = vec![KeyValue::new(names::WAIT_REASON, reason), KeyValue::new(names::WAIT_DETAIL, short(&detail))];
        if let Some(queue) = &mut open.queue {
            queue.set_attribute(KeyValue::new(names::WAIT_REASON, reason));
            queue.add_event("waits", facts);
        }
        open.request.set_attribute(KeyValue::new(names::WAIT_REASON, reason));
    }

    /// Ends the wait and begins the call of the place that is to answer.
    pub fn placed(&self, facts: PlaceFacts) {
        let Some(mut open) = self.open() else { return };
        let now = SystemTime::now();
        let PlaceFacts { model, provider, is_local, devices, priority, rung, rung_reason, loading } = facts;
        let model = short(&model);
        if let Some(mut queue) = open.queue.take() {
            if let Some(begun) = now.checked_sub(loading).filter(|_| !loading.is_zero()) {
                let builder = SpanBuilder::from_name("load").with_start_time(begun).with_attributes([
                    KeyValue::new(names::REQUEST_MODEL, model.clone()),
                    KeyValue::new(names::DEVICES, devices.clone()),
                ]);
                let mut load = open.tracer.build_with_context(builder, &within(queue.span_context()));
                load.end_with_timestamp(now);
            }
            queue.end_with_timestamp(now);
        }
        open.calls += 1;
        let rung = [KeyValue::new(names::RUNG, rung), KeyValue::new(names::RUNG_REASON, short(&rung_reason))];
        let mut about = vec![
            KeyValue::new(names::OPERATION, open.operation),
            KeyValue::new(names::PROVIDER, provider.into_owned()),
            KeyValue::new(names::REQUEST_MODEL, model.clone()),
        ];
        about.extend(is_local.then(|| KeyValue::new(names::DEVICES, devices)));
        about.extend(priority.map(|priority| KeyValue::new(names::PRIORITY, i64::from(priority))));
        open.request.set_attributes(rung.clone());
        open.request.set_attribute(KeyValue::new(names::RESPONSE_MODEL, model.clone()));
        open.request.set_attributes(priority.map(|priority| KeyValue::new(names::PRIORITY, i64::from(priority))));
        let builder = SpanBuilder::from_name(format!("{} {model}", open.operation))
            .with_kind(SpanKind::Client)
            .with_start_time(now)
            .with_attributes(about.into_iter().chain(rung));
        let span = open.tracer.build_with_context(builder, &within(open.request.span_context()));
        open.call = Some(OpenCall { span, begun: now, is_local });
    }

    /// Writes the trace context of the current call into the headers of its request.
    pub fn inject(&self, headers: &mut HeaderMap) {
        let Some(open) = self.open() else { return };
        inject(open.innermost(), headers);
    }

    /// Ends the current call, which gave no answer.
    pub fn call_failed(&self, error: &'static str) {
        if let Some(mut open) = self.open() {
            open.end_call(SystemTime::now(), &AnswerFacts::default(), Some(error), true);
        }
    }

    /// Notes the error that the request ends with.
    pub fn failed(&self, error: &'static str) {
        if let Some(mut open) = self.open() {
            open.error = Some(error);
        }
    }

    /// The answer of the route: it ends the trace of a request that was refused before it was queued.
    pub fn answered(&self, status: u16, error: Option<&'static str>) {
        let Some(mut open) = self.open() else { return };
        if !open.has_account {
            open.error = open.error.or(error);
            open.end(status, &AnswerFacts::default());
        }
    }

    /// The end of the request: its last byte was sent, or its client has left.
    pub fn finish(&self, status: u16, facts: &AnswerFacts) {
        if let Some(mut open) = self.open() {
            open.end(status, facts);
        }
    }

    fn open(&self) -> Option<MutexGuard<'_, OpenSpans>> {
        self.0.as_ref().map(|open| open.lock().unwrap_or_else(PoisonError::into_inner)).filter(|open| !open.ended)
    }
}

impl OpenSpans {
    fn innermost(&self) -> &SpanContext {
        self.call.as_ref().map_or_else(|| self.request.span_context(), |call| call.span.span_context())
    }

    fn end(&mut self, status: u16, facts: &AnswerFacts) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let now = SystemTime::now();
        let is_fault = status >= 500;
        let error = match self.error {
            _ if status < 400 => None,
            Some(code) => Some(Value::from(code)),
            None if status == CLIENT_GONE.0 => Some(Value::from(CLIENT_GONE.1)),
            None => Some(Value::from(status.to_string())),
        };
        if let Some(mut queue) = self.queue.take() {
            queue.set_attributes(error.clone().map(|error| KeyValue::new(names::ERROR_TYPE, error)));
            queue.end_with_timestamp(now);
        }
        self.end_call(now, facts, error.clone(), is_fault);
        let code = i64::from(status);
        self.request.set_attribute(KeyValue::new(names::HTTP_STATUS, code));
        if self.calls > 1 {
            self.request.set_attribute(KeyValue::new(names::CALLS, self.calls));
        }
        self.request.set_attributes(error.map(|error| KeyValue::new(names::ERROR_TYPE, error)));
        if is_fault {
            self.request.set_status(Status::error(""));
        }
        self.request.end_with_timestamp(now);
    }

    /// Ends the current call with the figures of its answer.
    fn end_call(&mut self, now: SystemTime, facts: &AnswerFacts, error: Option<impl Into<Value>>, is_fault: bool) {
        let Some(OpenCall { mut span, begun, is_local }) = self.call.take() else { return };
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let (input, output) = facts.tokens.unzip();
        for (name, count) in
            [(names::INPUT_TOKENS, input), (names::OUTPUT_TOKENS, output), (names::CACHED_TOKENS, facts.cached)]
        {
            span.set_attributes(count.map(|count| KeyValue::new(name, number(count))));
        }
        let first = facts.since_first_byte.and_then(|since| now.checked_sub(since)?.duration_since(begun).ok());
        span.set_attributes(first.map(|time| KeyValue::new(names::FIRST_CHUNK, time.as_secs_f64())));
        if let Some(parts) = work_parts(begun, now, facts).filter(|_| is_local) {
            let context = within(span.span_context());
            for (name, from, to) in [("prefill", parts.prefill, parts.decode), ("decode", parts.decode, parts.end)] {
                self.part(&context, name, from, to);
            }
        }
        span.set_attributes(error.map(|error| KeyValue::new(names::ERROR_TYPE, error)));
        if is_fault {
            span.set_status(Status::error(""));
        }
        span.end_with_timestamp(now);
    }

    fn part(&self, within: &Context, name: &'static str, from: SystemTime, to: SystemTime) {
        let builder = SpanBuilder::from_name(name).with_start_time(from);
        self.tracer.build_with_context(builder, within).end_with_timestamp(to);
    }
}

impl Drop for OpenSpans {
    /// The last owner is gone without an end: the client has left.
    fn drop(&mut self) {
        self.end(CLIENT_GONE.0, &AnswerFacts::default());
    }
}

impl fmt::Debug for OpenSpans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenSpans").field("request", self.request.span_context()).finish_non_exhaustive()
    }
}

/// OpenTelemetry's word for what a route is asked for; this project's where it has none.
fn operation(path: &str) -> &'static str {
    match path {
        "/v1/completions" => "text_completion",
        "/v1/embeddings" | "/embed" | "/embed_all" => "embeddings",
        "/v1/rerank" | "/v1/score" | "/v1/classify" | "/predict" => "rerank",
        "/v1/tokenize" | "/v1/detokenize" => "tokenize",
        _ => "chat",
    }
}

fn short(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}
