//! OP-3: traces of requests, seen by a collector.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use http::Method;
use model_boss_tests::{
    Behaviour, Boss, CollectedSpan, Collector, CollectorMode, PATIENCE, Sandbox, binary, question, until,
};
use serde_json::{Value, json};

use crate::cloud::{KEY, Stub, message};
use crate::views;

const CHAT: &str = "/v1/chat/completions";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

async fn start(sandbox: &Sandbox, collector: &Collector) -> Boss {
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    launch.command.env("ANTHROPIC_API_KEY", KEY);
    collector.receives_from(&mut launch);
    launch.start().await
}

/// The only span of a trace with this name.
fn only<'a>(trace: &'a [CollectedSpan], name: &str) -> &'a CollectedSpan {
    let named: Vec<_> = trace.iter().filter(|span| span.name == name).collect();
    let [only] = named.as_slice() else { panic!("{} spans are named {name}: {trace:#?}", named.len()) };
    only
}

/// Whether one span lies within another; clocks are read twice between the two.
fn within(inner: &CollectedSpan, outer: &CollectedSpan) -> bool {
    outer.times.0 <= inner.times.0 && inner.times.0 <= inner.times.1 && inner.times.1 <= outer.times.1
}

fn model_is(model: &'static str) -> impl Fn(&CollectedSpan) -> bool {
    move |span| span.get("gen_ai.request.model") == model
}

#[tokio::test]
async fn op_3_a_chat_from_the_door_to_its_tokens() {
    let (sandbox, collector) = (Sandbox::new(), Collector::start().await);
    let behaviour = Behaviour { reply: Some("the secret answer".to_owned()), load_ms: 30, ..Behaviour::default() };
    let mut model = sandbox.fake_model("alpha", behaviour);
    let boss = start(&sandbox, &collector).await;
    let body = question("alpha", "my secret question").to_string();
    let mut request = boss.client().request(Method::POST, CHAT, body);
    for (name, value) in [
        ("traceparent", PARENT),
        ("tracestate", "vendor=1"),
        ("x-request-id", "my-own-id"),
        ("x-client-id", "someone"),
        ("x-priority", "2"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    assert_eq!(boss.client().send(request).await.text(), "the secret answer");

    let trace = collector.trace(|span| span.get("model_boss.request.id") == "my-own-id").await;
    let request = &trace[0];
    assert_eq!((request.name.as_str(), request.trace.as_str()), ("POST /v1/chat/completions", TRACE));
    assert_eq!(request.parent, "00f067aa0ba902b7");
    for (name, value) in [
        ("http.request.method", json!("POST")),
        ("http.route", json!(CHAT)),
        ("http.response.status_code", json!(200)),
        ("gen_ai.operation.name", json!("chat")),
        ("gen_ai.request.model", json!("alpha")),
        ("gen_ai.response.model", json!("alpha")),
        ("gen_ai.request.stream", json!(false)),
        ("model_boss.client", json!("someone")),
        ("model_boss.priority", json!(2)),
        ("model_boss.rung", json!(0)),
        ("error.type", Value::Null),
    ] {
        assert_eq!(request.get(name), value, "{name}: {request:#?}");
    }
    assert_eq!(request.resource["service.name"], "model-boss");
    assert!(!request.failed);

    let queue = only(&trace, "queue");
    assert_eq!(queue.parent, request.id);
    assert!(!queue.get("model_boss.wait.reason").is_null(), "{queue:#?}");
    let load = only(&trace, "load");
    assert_eq!((&load.parent, load.get("model_boss.devices")), (&queue.id, json!("cpu")));
    assert!(within(load, queue) && load.times.1 - load.times.0 >= 30_000_000, "{load:#?} {queue:#?}");
    let call = only(&trace, "chat alpha");
    assert_eq!((&call.parent, call.kind), (&request.id, 3));
    for (name, value) in [
        ("gen_ai.provider.name", json!("model_boss")),
        ("gen_ai.usage.input_tokens", json!(3)),
        ("gen_ai.usage.output_tokens", json!(3)),
        ("gen_ai.usage.cache_read.input_tokens", json!(0)),
        ("model_boss.devices", json!("cpu")),
    ] {
        assert_eq!(call.get(name), value, "{name}: {call:#?}");
    }
    for part in ["prefill", "decode"].map(|name| only(&trace, name)) {
        assert!(part.parent == call.id && within(part, call), "{part:#?} {call:#?}");
    }
    assert_eq!(only(&trace, "prefill").times.1, only(&trace, "decode").times.0);
    assert!([queue, call].iter().all(|span| within(span, request)), "{trace:#?}");
    assert_eq!(trace.len(), 6, "{trace:#?}");

    // The worker gets the context of the call, with what the client's tracer wants to be passed on.
    let received = model.worker().await.request().await;
    assert_eq!(received.headers["traceparent"], format!("00-{TRACE}-{}-01", call.id));
    assert_eq!(received.headers["tracestate"], "vendor=1");

    for body in collector.bodies() {
        assert!(!body.windows(6).any(|bytes| bytes == b"secret"), "texts are in no trace");
    }
    boss.finish().await;
}

#[tokio::test]
async fn op_3_a_streamed_chat_and_a_bad_trace_context() {
    let (sandbox, collector) = (Sandbox::new(), Collector::start().await);
    let _model = sandbox.fake_model("alpha", Behaviour { reply: Some("a b c".to_owned()), ..Behaviour::default() });
    let boss = start(&sandbox, &collector).await;
    let mut body = question("alpha", "?");
    body["stream"] = true.into();
    let mut request = boss.client().request(Method::POST, CHAT, body.to_string());
    request.headers_mut().insert("traceparent", "00-nonsense-01".parse().unwrap());
    let answer = boss.client().follow(request).await.into_answer().await;
    assert!(answer.status.is_success());
    let trace = collector.trace(model_is("alpha")).await;
    let (request, call) = (&trace[0], only(&trace, "chat alpha"));
    assert_eq!((request.parent.as_str(), request.get("gen_ai.request.stream")), ("", json!(true)));
    assert_ne!(request.trace, TRACE);
    assert_eq!(call.get("gen_ai.usage.output_tokens"), 3);
    assert!(call.get("gen_ai.response.time_to_first_chunk").as_f64().is_some_and(|time| time > 0.0), "{call:#?}");
    assert_eq!(only(&trace, "decode").parent, call.id);
    boss.finish().await;
}

#[tokio::test]
async fn op_3_one_that_waits_says_why_and_one_that_leaves_is_cancelled() {
    let (sandbox, collector) = (Sandbox::new(), Collector::start().await);
    let holding = Behaviour { reply: Some("one two".to_owned()), hold_after_tokens: Some(1), ..Behaviour::default() };
    let mut model = sandbox.fake_model_with("alpha", "max_concurrent = 1", holding);
    let boss = start(&sandbox, &collector).await;
    let mut first = boss.chat_streamed("alpha", "?").await;
    first.token().await;
    let second = boss.ask(json!({ "model": "alpha", "x_priority": 7, "messages": question("alpha", "?")["messages"] }));
    views::waiting(&boss, 1).await;
    // The reason is asked for when the request begins to wait, so it is known once the queue has it.
    let third = boss.ask(json!({ "model": "alpha", "x_priority": 8, "messages": question("alpha", "?")["messages"] }));
    views::waiting(&boss, 2).await;
    third.abort();
    let queued = collector.trace(|span| span.get("model_boss.priority") == 8).await;
    assert_eq!(queued[0].get("error.type"), "client_gone");
    assert_eq!(only(&queued, "queue").get("error.type"), "client_gone");
    assert_eq!(queued.len(), 2, "{queued:#?}");
    drop(first);
    let mut worker = model.worker().await;
    worker.cancelled().await;
    worker.decode();
    assert!(second.await.unwrap().status.is_success());

    let gone =
        collector.trace(|span| span.get("error.type") == "client_gone" && span.get("model_boss.priority") != 8).await;
    let (request, call) = (&gone[0], only(&gone, "chat alpha"));
    assert_eq!(request.get("http.response.status_code"), 499);
    assert_eq!(call.get("error.type"), "client_gone");
    assert!(!request.failed && !call.failed, "a client that leaves is no fault");
    assert_eq!((&only(&gone, "prefill").parent, &only(&gone, "decode").parent), (&call.id, &call.id));

    let waited = collector.trace(|span| span.get("model_boss.priority") == 7).await;
    let queue = only(&waited, "queue");
    assert_eq!(queue.get("model_boss.wait.reason"), "busy", "{queue:#?}");
    let (name, facts) = &queue.events[0];
    assert_eq!((name.as_str(), &facts["model_boss.wait.reason"]), ("waits", &json!("busy")));
    assert!(facts["model_boss.wait.detail"].as_str().unwrap().contains("alpha"), "{facts:?}");
    boss.finish().await;
}

#[tokio::test]
async fn op_3_errors_have_their_codes() {
    let (sandbox, collector) =
        (Sandbox::new().with_config("max_retries = 1\nback_off_first = \"10ms\""), Collector::start().await);
    let crash = Behaviour { crash_after_tokens: Some(0), ..Behaviour::default() };
    let _model = sandbox.fake_model("alpha", crash);
    let boss = start(&sandbox, &collector).await;
    let unknown = boss.chat("no-such-model", "?").await;
    let trace = collector.trace(|span| span.get("http.response.status_code") == 404).await;
    assert_eq!(trace[0].get("error.type"), unknown.error_code());
    assert_eq!(only(&trace, "queue").get("error.type"), unknown.error_code());
    assert!(trace.len() == 2 && !trace[0].failed, "a wrong name is the client's fault: {trace:#?}");
    let bad = boss.client().post(CHAT, &json!([])).await;
    let trace = collector.trace(|span| span.get("error.type") == bad.error_code()).await;
    assert_eq!(trace.len(), 1, "it was refused before it was queued: {trace:#?}");

    let crashed = boss.chat("alpha", "?").await;
    assert!(crashed.status.is_server_error(), "{crashed:?}");
    let trace = collector.trace(model_is("alpha")).await;
    assert_eq!(trace[0].get("error.type"), crashed.error_code(), "{trace:#?}");
    assert!(trace[0].failed);
    // Each attempt is a call after a wait of its own.
    assert_eq!(trace[0].get("model_boss.calls"), 2, "{trace:#?}");
    let calls: Vec<_> = trace.iter().filter(|span| span.name == "chat alpha").collect();
    assert_eq!((calls.len(), trace.iter().filter(|span| span.name == "queue").count()), (2, 3), "{trace:#?}");
    assert!(calls.iter().all(|call| call.failed && call.get("error.type") == "worker_lost"), "{trace:#?}");
    boss.finish().await;
}

#[tokio::test]
async fn op_3_a_provider_gets_the_trace_context() {
    let stub = Stub::start("application/json", message("four")).await;
    let collector = Collector::start().await;
    let claude = format!(
        "[providers.claude]\nbase_url = \"http://{}\"\nkey_env = \"ANTHROPIC_API_KEY\"\n\
         models = {{ opus = \"claude-opus-x\" }}",
        stub.address
    );
    let sandbox = Sandbox::new().with_config(&claude);
    let boss = start(&sandbox, &collector).await;
    let mut request = boss.client().request(Method::POST, CHAT, question("claude:opus", "?").to_string());
    request.headers_mut().insert("traceparent", PARENT.parse().unwrap());
    assert_eq!(boss.client().send(request).await.text(), "four");
    let trace = collector.trace(|span| span.trace == TRACE).await;
    let call = only(&trace, "chat claude:opus");
    assert_eq!(call.get("gen_ai.provider.name"), "anthropic");
    assert_eq!(
        (call.get("gen_ai.usage.input_tokens"), call.get("gen_ai.usage.output_tokens")),
        (json!(1000), json!(500))
    );
    assert!(trace.iter().all(|span| span.name != "prefill"), "nobody knows how the provider's time was spent");
    assert_eq!(stub.asked()[0].headers["traceparent"], format!("00-{TRACE}-{}-01", call.id));
    boss.finish().await;
}

#[tokio::test]
async fn op_3_an_external_engine_gets_the_trace_context() {
    let (mut sandbox, collector) = (Sandbox::new(), Collector::start().await);
    sandbox.llama_server();
    let behaviour = Behaviour { reply: Some("a b".to_owned()), ..Behaviour::default() };
    let mut model = sandbox.gguf_model("alpha", "backend = \"llama-server\"", behaviour);
    let boss = start(&sandbox, &collector).await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    let trace = collector.trace(model_is("alpha")).await;
    let call = only(&trace, "chat alpha");
    assert_eq!(call.get("gen_ai.provider.name"), "llama-server");
    let received = model.worker().await.request().await;
    assert_eq!(received.headers["traceparent"], format!("00-{}-{}-01", call.trace, call.id));
    boss.finish().await;
}

#[tokio::test]
async fn op_3_a_collector_that_is_down_costs_no_request_and_one_line() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    // A port that was free a moment ago.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://127.0.0.1:{port}")),
        ("OTEL_BSP_SCHEDULE_DELAY", "1".to_owned()),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "200".to_owned()),
    ];
    launch.command.envs(variables);
    let boss = launch.start().await;
    let dropped = ["model_boss_trace_spans_dropped_total", "export_failed"];
    let mut before = 0.0;
    for _ in 0..3 {
        assert!(boss.chat("alpha", "?").await.status.is_success());
        let more = async || Some(views::metric(&boss, &dropped).await).filter(|count| *count > before);
        before = until(PATIENCE, "spans are dropped and counted", more).await;
    }
    let output = boss.output().clone();
    boss.finish().await;
    let lines: Vec<String> =
        output.text().lines().filter(|line| line.contains("takes no traces")).map(str::to_owned).collect();
    assert!(lines.len() == 1 && lines[0].contains(&port.to_string()), "{}", output.text());
}

#[tokio::test]
async fn op_3_a_collector_that_refuses_for_a_moment_is_asked_again_and_one_that_is_back_is_named() {
    let (sandbox, collector) = (Sandbox::new(), Collector::start().await);
    let _models = ["alpha", "beta"].map(|name| sandbox.fake_model(name, Behaviour::default()));
    let boss = start(&sandbox, &collector).await;
    collector.set(CollectorMode::Refuses(503));
    assert!(boss.chat("alpha", "?").await.status.is_success());
    until(PATIENCE, "the collector refuses", async || (!collector.bodies().is_empty()).then_some(())).await;
    collector.set(CollectorMode::Takes);
    collector.trace(model_is("alpha")).await;

    // A request that makes no sense to the collector is not repeated.
    collector.set(CollectorMode::Refuses(400));
    assert!(boss.chat("alpha", "?").await.status.is_success());
    let dropped = ["model_boss_trace_spans_dropped_total", "export_failed"];
    let lost = async || Some(views::metric(&boss, &dropped).await).filter(|count| *count > 0.0);
    until(PATIENCE, "spans are dropped", lost).await;
    collector.set(CollectorMode::Takes);
    assert!(boss.chat("beta", "?").await.status.is_success());
    collector.trace(model_is("beta")).await;
    boss.output().line("says that it is back", |line| line.contains("takes traces again")).await;
    let text = boss.output().text();
    assert!(text.contains("takes no traces: it answered with status 400"), "{text}");
    boss.finish().await;
}

#[tokio::test]
async fn op_3_a_collector_that_hangs_holds_nothing_up() {
    let (sandbox, collector) = (Sandbox::new(), Collector::start().await);
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    collector.set(CollectorMode::Hangs);
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    collector.receives_from(&mut launch);
    launch.command.env("OTEL_BSP_MAX_QUEUE_SIZE", "4");
    let boss = launch.start().await;
    let full = ["model_boss_trace_spans_dropped_total", "queue_full"];
    let drops = async || {
        assert!(boss.chat("alpha", "?").await.status.is_success());
        Some(views::metric(&boss, &full).await).filter(|count| *count > 0.0)
    };
    until(PATIENCE, "the queue is full", drops).await;
    let asked_to_end = Instant::now();
    boss.finish().await;
    // Two seconds for the traces, and the rest for a busy machine.
    assert!(asked_to_end.elapsed() < Duration::from_secs(15), "{:?}", asked_to_end.elapsed());
}

#[tokio::test]
async fn op_3_the_last_spans_are_sent_at_the_end_with_the_headers_of_the_environment() {
    let (sandbox, collector) = (Sandbox::new(), Collector::start().await);
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    let variables = [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", format!("{}/v1/traces", collector.url())),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=one".to_owned()),
        ("OTEL_SERVICE_NAME", "the-box".to_owned()),
        // The batch is not sent before the end.
        ("OTEL_BSP_SCHEDULE_DELAY", "600000".to_owned()),
    ];
    launch.command.envs(variables);
    let boss = launch.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    assert!(collector.spans().is_empty());
    boss.finish().await;
    let trace = collector.trace(model_is("alpha")).await;
    assert_eq!(trace[0].resource["service.name"], "the-box");
    assert_eq!(collector.headers()[0]["x-tenant"], "one");
}

#[tokio::test]
async fn op_3_what_is_not_sampled_is_not_sent_but_passed_on() {
    let (sandbox, collector) = (Sandbox::new(), Collector::start().await);
    let mut model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = start(&sandbox, &collector).await;
    let mut request = boss.client().request(Method::POST, CHAT, question("alpha", "?").to_string());
    request.headers_mut().insert("traceparent", PARENT.replace("-01", "-00").parse().unwrap());
    assert!(boss.client().send(request).await.status.is_success());
    let received = model.worker().await.request().await;
    let passed = &received.headers["traceparent"];
    assert!(passed.starts_with(&format!("00-{TRACE}-")) && passed.ends_with("-00"), "{passed}");
    boss.finish().await;
    assert!(collector.spans().is_empty());
}

#[tokio::test]
async fn op_3_a_collector_that_makes_no_sense_is_named_at_the_start() {
    let sandbox = Sandbox::new();
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    launch.command.args(["--otlp-endpoint", "localhost:4318"]);
    let (status, output) = launch.end().await;
    assert!(!status.success());
    assert!(output.contains("otlp_endpoint") && output.contains("http://127.0.0.1:4318"), "{output}");
}
