//! The way of finished spans to the collector. A full queue drops spans and counts them; a request never waits for it.
//! A thread with a runtime of its own sends, so that the threads of requests do not even encode.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter, SpanProcessor};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout_at};

use crate::collector::CollectorClient;
use crate::endpoint::TraceError;

/// How many spans wait, are sent together, and how long the first of them waits for others. OpenTelemetry's variables
/// `OTEL_BSP_*` change them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchLimits {
    pub(crate) queue: usize,
    pub(crate) batch: usize,
    pub(crate) delay: Duration,
}

impl BatchLimits {
    /// The limits by these variables.
    pub(crate) fn of(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let number = |name, usual: usize| {
            let given = variable(name).and_then(|value| value.parse().ok());
            given.filter(|number| *number > 0).unwrap_or(usual)
        };
        let queue = number("OTEL_BSP_MAX_QUEUE_SIZE", 2_048);
        let batch = number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512).min(queue);
        let delay = Duration::from_millis(number("OTEL_BSP_SCHEDULE_DELAY", 1_000) as u64);
        Self { queue, batch, delay }
    }
}

/// Spans since the start, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportFigures {
    /// The collector has them.
    pub exported: u64,
    /// Dropped because the queue was full.
    pub dropped_full: u64,
    /// Dropped because the collector did not take them.
    pub dropped_failed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct ExportCounts {
    exported: AtomicU64,
    full: AtomicU64,
    failed: AtomicU64,
    /// Whether the log already says that the queue is full.
    is_full_told: AtomicBool,
}

impl ExportCounts {
    pub(crate) fn figures(&self) -> ExportFigures {
        ExportFigures {
            exported: self.exported.load(Ordering::Relaxed),
            dropped_full: self.full.load(Ordering::Relaxed),
            dropped_failed: self.failed.load(Ordering::Relaxed),
        }
    }

    fn count(&self, sent: bool, spans: usize) {
        if sent {
            self.is_full_told.store(false, Ordering::Relaxed);
        }
        let counter = if sent { &self.exported } else { &self.failed };
        counter.fetch_add(spans as u64, Ordering::Relaxed);
    }
}

/// The end of the queue that finished spans go into.
#[derive(Debug)]
pub(crate) struct SpanQueue {
    sender: mpsc::Sender<SpanData>,
    counts: Arc<ExportCounts>,
}

impl SpanProcessor for SpanQueue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.sender.try_send(span).is_err() {
            self.counts.full.fetch_add(1, Ordering::Relaxed);
            if !self.counts.is_full_told.swap(true, Ordering::Relaxed) {
                tracing::warn!("spans come faster than the collector takes them: some are dropped, and counted");
            }
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// The sender's order to end, with the time by which it must.
pub(crate) struct FlushOrder {
    pub(crate) until: Instant,
    pub(crate) done: oneshot::Sender<()>,
}

/// The thread that sends.
pub(crate) struct SpanSender<E> {
    pub(crate) exporter: E,
    pub(crate) client: CollectorClient,
    pub(crate) address: String,
    pub(crate) limits: BatchLimits,
    pub(crate) resource: Resource,
}

impl<E: SpanExporter + 'static> SpanSender<E> {
    /// Starts the thread. It ends with its order.
    pub(crate) fn start(
        mut self,
        counts: &Arc<ExportCounts>,
        orders: oneshot::Receiver<FlushOrder>,
    ) -> Result<SpanQueue, TraceError> {
        let (sender, spans) = mpsc::channel(self.limits.queue);
        let queue = SpanQueue { sender, counts: Arc::clone(counts) };
        self.exporter.set_resource(&self.resource);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(TraceError::Thread)?;
        let counts = Arc::clone(counts);
        let work = move || runtime.block_on(self.run(spans, orders, &counts));
        std::thread::Builder::new().name("traces".to_owned()).spawn(work).map_err(TraceError::Thread)?;
        Ok(queue)
    }

    async fn run(
        self,
        mut spans: mpsc::Receiver<SpanData>,
        mut orders: oneshot::Receiver<FlushOrder>,
        counts: &ExportCounts,
    ) {
        let (mut is_down, mut batch) = (false, Vec::new());
        let order = loop {
            tokio::select! {
                order = &mut orders => break order,
                more = self.gather(&mut spans, &mut batch) => if !more { return },
            }
            let count = batch.len();
            let mut sending = pin!(self.send(std::mem::take(&mut batch), &mut is_down));
            tokio::select! {
                sent = &mut sending => counts.count(sent, count),
                order = &mut orders => {
                    let until = order.as_ref().map_or_else(|_| Instant::now(), |order| order.until);
                    counts.count(timeout_at(until, sending).await.unwrap_or(false), count);
                    break order;
                }
            }
        };
        let Ok(FlushOrder { until, done }) = order else { return };
        spans.close();
        loop {
            while let Some(span) = (batch.len() < self.limits.batch).then(|| spans.try_recv().ok()).flatten() {
                batch.push(span);
            }
            if batch.is_empty() {
                break;
            }
            let count = batch.len();
            let sending = self.send(std::mem::take(&mut batch), &mut is_down);
            counts.count(timeout_at(until, sending).await.unwrap_or(false), count);
        }
        // An error means that nobody waits any more.
        let _ = done.send(());
    }

    /// Gathers spans until there are as many as go together, or one delay is over; `false` when there can be no more.
    /// A cancelled call leaves the gathered spans in the batch.
    async fn gather(&self, spans: &mut mpsc::Receiver<SpanData>, batch: &mut Vec<SpanData>) -> bool {
        if spans.recv_many(batch, self.limits.batch).await == 0 {
            return false;
        }
        let mut due = pin!(sleep(self.limits.delay));
        while batch.len() < self.limits.batch {
            let room = self.limits.batch - batch.len();
            tokio::select! {
                () = &mut due => break,
                more = spans.recv_many(batch, room) => if more == 0 { break },
            }
        }
        true
    }

    /// Sends a batch; the log names a collector that is down once.
    async fn send(&self, batch: Vec<SpanData>, is_down: &mut bool) -> bool {
        let count = batch.len();
        match self.exporter.export(batch).await {
            Ok(()) => {
                if std::mem::take(is_down) {
                    tracing::info!("the collector at {} takes traces again", self.address);
                }
                true
            }
            Err(error) => {
                if !std::mem::replace(is_down, true) {
                    let why = self.client.take_fault().unwrap_or_else(|| error.to_string());
                    tracing::warn!(
                        "the collector at {} takes no traces: {why}; {count} spans are dropped, and so are others \
                         until it does (model_boss_trace_spans_dropped_total counts them)",
                        self.address
                    );
                }
                false
            }
        }
    }
}
