//! The source of traces: the sampler, the collector, and the end of both.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::InstrumentationScope;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::collector::CollectorClient;
use crate::endpoint::{TraceError, endpoint};
use crate::export::{BatchLimits, ExportCounts, ExportFigures, FlushOrder, SpanSender};
use crate::facts::RequestHead;
use crate::names::{SERVICE_NAME, SERVICE_VERSION};
use crate::request_trace::RequestTrace;

/// The name of this service in traces, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` has another.
const NAME: &str = "model-boss";

/// The samplers of `OTEL_TRACES_SAMPLER`.
const SAMPLERS: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];

/// Traces of requests, or none.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<Arc<TraceSource>>);

struct TraceSource {
    tracer: SdkTracer,
    counts: Arc<ExportCounts>,
    address: String,
    /// The order to end, until it is given.
    flush: Mutex<Option<oneshot::Sender<FlushOrder>>>,
}

impl Traces {
    /// Traces that are sent to the collector of this setting, or of OpenTelemetry's variables; none where neither names
    /// one.
    pub fn start(setting: Option<&str>, version: &'static str) -> Result<Self, TraceError> {
        let variable = |name: &str| std::env::var(name).ok();
        let Some(address) = endpoint(setting, &variable)? else { return Ok(Self(None)) };
        let sampler = variable("OTEL_TRACES_SAMPLER").filter(|sampler| !SAMPLERS.contains(&sampler.as_str()));
        if let Some(sampler) = sampler {
            tracing::warn!(
                "OTEL_TRACES_SAMPLER={sampler} is unknown: every trace is kept, as by parentbased_always_on"
            );
        }
        let client = CollectorClient::new(address.scheme_str() == Some("https"));
        let address = address.to_string();
        let exporter =
            SpanExporter::builder().with_http().with_http_client(client.clone()).with_endpoint(&address).build()?;
        let resource = resource(version, variable("OTEL_SERVICE_NAME"), variable("OTEL_RESOURCE_ATTRIBUTES"));
        let (counts, (flush, orders)) = (Arc::<ExportCounts>::default(), oneshot::channel());
        let limits = BatchLimits::of(&variable);
        let sender = SpanSender { exporter, client, address: address.clone(), limits, resource: resource.clone() };
        let queue = sender.start(&counts, orders)?;
        let provider = SdkTracerProvider::builder().with_span_processor(queue).with_resource(resource).build();
        let tracer = provider.tracer_with_scope(InstrumentationScope::builder(NAME).with_version(version).build());
        let flush = Mutex::new(Some(flush));
        Ok(Self(Some(Arc::new(TraceSource { tracer, counts, address, flush }))))
    }

    /// The address of the collector; `None` without traces.
    pub fn address(&self) -> Option<&str> {
        self.0.as_ref().map(|source| source.address.as_str())
    }

    /// Begins the trace of a request, or the part of it that is here.
    pub fn begin(&self, head: &RequestHead<'_>) -> RequestTrace {
        self.0.as_ref().map_or_else(RequestTrace::default, |source| RequestTrace::begin(&source.tracer, head))
    }

    /// Spans by what became of them; `None` without traces.
    pub fn figures(&self) -> Option<ExportFigures> {
        self.0.as_ref().map(|source| source.counts.figures())
    }

    /// Sends what is left, for this long at most. Later spans are dropped.
    pub async fn finish(&self, within: Duration) {
        let Some(source) = &self.0 else { return };
        let Some(flush) = source.flush.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let now = Instant::now();
        let until = now.checked_add(within).unwrap_or(now);
        let (done, ended) = oneshot::channel();
        if flush.send(FlushOrder { until, done }).is_ok() && timeout_at(until, ended).await.is_err() {
            tracing::warn!("the collector at {} did not take the last traces in time", source.address);
        }
    }
}

/// This process in traces.
fn resource(version: &'static str, name: Option<String>, attributes: Option<String>) -> Resource {
    use opentelemetry::KeyValue;
    let named = name.is_some_and(|name| !name.is_empty())
        || attributes.is_some_and(|all| all.split(',').any(|pair| pair.trim_start().starts_with("service.name=")));
    let builder = Resource::builder().with_attribute(KeyValue::new(SERVICE_VERSION, version));
    if named { builder.build() } else { builder.with_attribute(KeyValue::new(SERVICE_NAME, NAME)).build() }
}

impl fmt::Debug for TraceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceSource").field("address", &self.address).finish_non_exhaustive()
    }
}
