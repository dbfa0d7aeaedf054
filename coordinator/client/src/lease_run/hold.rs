//! `lease hold`: leases for a program in another language, over a pipe. One JSON object per line in each direction, as
//! docs/leases.md describes. It ends with its standard input, so a caller that dies releases its leases by closing the
//! pipe.

use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use model_boss_host::terminal;
use model_boss_lease_store::Yielding;
use model_boss_protocol::{ByteCount, DeviceId, Priority, chain};
use serde::{Deserialize, Serialize};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::desk::{Granted, GrantedPart, LeaseRequest, RevokeNotice};
use super::error::LeaseError;
use super::keeper::{Keeper, LeaseEvent, LeaseEvents, Leaving};
use super::whereabouts::Whereabouts;
use crate::lease_http::span::{self, millis};
use crate::lease_http::{grace, min_hold, training};
use crate::lease_run::opening;

/// The longest line of input, in bytes.
const LONGEST_LINE: u64 = 1 << 20;

/// A request on standard input.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
enum PipeRequest {
    /// Requests memory; later lines about the lease carry this id.
    Acquire {
        id: String,
        vram: ByteCount,
        #[serde(default)]
        gpus: Option<usize>,
        #[serde(default)]
        devices: Vec<DeviceId>,
        #[serde(default = "training")]
        priority: Priority,
        #[serde(default)]
        preemptible: bool,
        #[serde(default)]
        preempt: bool,
        #[serde(default = "grace", with = "span")]
        grace: Duration,
        #[serde(default = "min_hold", with = "span")]
        min_hold: Duration,
        #[serde(default)]
        label: String,
        /// The longest wait; forever when absent.
        #[serde(default)]
        wait: Option<Span>,
    },
    /// Passes processes through the gate.
    Attach { id: String, pids: Vec<u32> },
    /// Releases the memory, or cancels the request.
    Release { id: String },
}

/// A duration in seconds, or as a text with its unit.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Span(#[serde(with = "span")] Duration);

/// A message on standard output.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum PipeEvent {
    Asking {
        id: String,
        source: String,
    },
    Waiting {
        id: String,
        reason: String,
    },
    Granted {
        id: String,
        lease: String,
        parts: Vec<PipedPart>,
        cuda_visible_devices: String,
    },
    Attached {
        id: String,
    },
    Revoked {
        id: String,
        by: String,
        grace_left_ms: u64,
    },
    Lost {
        id: String,
    },
    Away {
        id: String,
        reason: String,
    },
    Back {
        id: String,
    },
    /// The lease is released; `counted` has the reason why some of its memory stays counted.
    Released {
        id: String,
        counted: Option<String>,
    },
    /// The request failed and is over.
    Failed {
        id: String,
        message: String,
    },
    /// A line that could not be followed; other requests continue.
    Error {
        id: Option<String>,
        message: String,
    },
}

#[derive(Debug, Serialize)]
struct PipedPart {
    device: DeviceId,
    bytes: ByteCount,
    uuid: Option<String>,
}

/// All leases and requests of this pipe.
struct PipedLeases {
    whereabouts: Whereabouts,
    entries: HashMap<String, PipedLease>,
    out: Sender<PipeEvent>,
    /// The number of requests so far, which makes their ids unique.
    asked: u64,
    leaving: Vec<JoinHandle<()>>,
}

struct PipedLease {
    keeper: Keeper,
    pump: JoinHandle<()>,
    /// Whether the request failed, so that its id is free.
    over: Arc<AtomicBool>,
}

pub(super) fn run(whereabouts: &Whereabouts) -> Result<ExitCode, LeaseError> {
    let runtime =
        Builder::new_current_thread().enable_all().build().map_err(|error| LeaseError::System("start", error))?;
    // The reading thread cannot be interrupted: it ends with the process.
    runtime.block_on(Box::pin(hold(whereabouts.clone())))
}

async fn hold(whereabouts: Whereabouts) -> Result<ExitCode, LeaseError> {
    let listen = |kind| signal(kind).map_err(|error| LeaseError::System("listen for signals", error));
    // Ctrl-C is sent to the whole process group. The calling program decides the reaction, and ends this one by closing
    // the pipe.
    let (_interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let (out, told) = channel();
    let (lines, mut input) = mpsc::unbounded_channel();
    let thread = |error| LeaseError::System("start a thread", error);
    let writer = std::thread::Builder::new().name("out".to_owned()).spawn(move || write(&told)).map_err(thread)?;
    std::thread::Builder::new().name("in".to_owned()).spawn(move || read(&lines)).map_err(thread)?;
    let mut hold = PipedLeases { whereabouts, entries: HashMap::new(), out, asked: 0, leaving: Vec::new() };
    let leaving = loop {
        tokio::select! {
            line = input.recv() => match line {
                Some(line) => hold.line(&line),
                None => break Leaving::Ending,
            },
            _ = terminate.recv() => break Leaving::LivingOn,
        }
    };
    for id in hold.entries.keys().cloned().collect::<Vec<_>>() {
        hold.release(id, leaving);
    }
    for task in std::mem::take(&mut hold.leaving) {
        // A task that panicked has no message left.
        let _ = task.await;
    }
    // The writer ends once every task that could send a message has ended.
    drop(hold);
    // A writer that panicked has written what it could.
    let _ = writer.join();
    Ok(ExitCode::SUCCESS)
}

impl PipedLeases {
    fn line(&mut self, line: &[u8]) {
        if line.trim_ascii().is_empty() {
            return;
        }
        let ask: PipeRequest = match serde_json::from_slice(line) {
            Ok(ask) => ask,
            Err(error) => {
                let value: Option<serde_json::Value> = serde_json::from_slice(line).ok();
                let id = value.and_then(|value| Some(value.get("id")?.as_str()?.to_owned()));
                return self.tell(PipeEvent::Error { id, message: format!("the line cannot be understood: {error}") });
            }
        };
        match ask {
            PipeRequest::Attach { id, pids } => self.attach(id, pids),
            PipeRequest::Release { id } if self.entries.contains_key(&id) => self.release(id, Leaving::LivingOn),
            PipeRequest::Release { id } => self.unknown(id),
            ask @ PipeRequest::Acquire { .. } => self.acquire(ask),
        }
    }

    fn acquire(&mut self, ask: PipeRequest) {
        let PipeRequest::Acquire {
            id,
            vram,
            gpus,
            devices,
            priority,
            preemptible,
            preempt,
            grace,
            min_hold,
            label,
            wait,
        } = ask
        else {
            return;
        };
        if self.entries.get(&id).is_some_and(|entry| !entry.over.load(Ordering::Acquire)) {
            let message = format!("'{id}' is taken: release it first, or use another id");
            return self.tell(PipeEvent::Error { id: Some(id), message });
        }
        if gpus.is_some() && !devices.is_empty() {
            let message = "'gpus' and 'devices' exclude each other".to_owned();
            return self.tell(PipeEvent::Failed { id, message });
        }
        let wanted = LeaseRequest {
            label: if label.is_empty() { "model-boss lease hold".to_owned() } else { label },
            memory: vram,
            devices,
            count: gpus.unwrap_or(1),
            priority,
            preempt,
            yielding: Yielding { preemptible, grace, min_hold, reload: Duration::ZERO },
        };
        self.asked += 1;
        let (whereabouts, request) = (self.whereabouts.clone(), format!("hold-{}", self.asked));
        match Keeper::start(move || opening::open(&whereabouts, wanted, &request)) {
            Ok((keeper, listener)) => {
                let (wait, over) = (wait.map(|wait| wait.0), Arc::new(AtomicBool::new(false)));
                let story = Story { id: id.clone(), keeper: keeper.clone(), over: Arc::clone(&over), listener, wait };
                let pump = tokio::spawn(story.tell(self.out.clone()));
                let failed = self.entries.insert(id, PipedLease { keeper, pump, over });
                self.leaving.extend(failed.map(|entry| entry.pump));
            }
            Err(error) => self.tell(PipeEvent::Failed { id, message: chain(&error) }),
        }
    }

    fn attach(&mut self, id: String, pids: Vec<u32>) {
        let Some(entry) = self.entries.get(&id) else { return self.unknown(id) };
        let (keeper, out) = (entry.keeper.clone(), self.out.clone());
        let task = tokio::spawn(async move {
            for pid in pids {
                if let Err(error) = keeper.attach(pid).await {
                    let message = format!("process {pid} was not let through: {}", chain(&error));
                    // Sending cannot fail: the writer outlives every sender.
                    let _ = out.send(PipeEvent::Error { id: Some(id), message });
                    return;
                }
            }
            let _ = out.send(PipeEvent::Attached { id });
        });
        self.leaving.retain(|task| !task.is_finished());
        self.leaving.push(task);
    }

    fn release(&mut self, id: String, leaving: Leaving) {
        let Some(PipedLease { keeper, pump, over }) = self.entries.remove(&id) else { return };
        if over.load(Ordering::Acquire) {
            self.leaving.push(pump);
            return;
        }
        let out = self.out.clone();
        self.leaving.push(tokio::spawn(async move {
            let counted = keeper.release(leaving).await;
            drop(keeper);
            // No message about the request follows after this.
            let _ = pump.await;
            let _ = out.send(PipeEvent::Released { id, counted });
        }));
    }

    fn unknown(&self, id: String) {
        let message = format!("nothing was acquired as '{id}'");
        self.tell(PipeEvent::Error { id: Some(id), message });
    }

    fn tell(&self, tell: PipeEvent) {
        // Sending cannot fail: the writer outlives every sender.
        let _ = self.out.send(tell);
    }
}

/// One request and its events, until the lease has ended.
struct Story {
    id: String,
    keeper: Keeper,
    over: Arc<AtomicBool>,
    listener: LeaseEvents,
    wait: Option<Duration>,
}

impl Story {
    /// Forwards the events until the keeper ends.
    async fn tell(mut self, out: Sender<PipeEvent>) {
        let mut reason = String::new();
        let mut granted = false;
        let wait = self.wait;
        let patience = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(patience);
        loop {
            let id = self.id.clone();
            let news = tokio::select! {
                // Events have precedence: memory may become free at the last moment, and a request that does not wait
                // still gets the reason.
                biased;
                news = self.listener.recv() => news,
                () = &mut patience, if !granted && !reason.is_empty() => {
                    self.keeper.cancel().await;
                    self.over.store(true, Ordering::Release);
                    let message = format!("the memory did not come free in time: {reason}");
                    let _ = out.send(PipeEvent::Failed { id, message });
                    return;
                }
            };
            let tell = match news {
                None => return,
                Some(LeaseEvent::Asks(source)) => PipeEvent::Asking { id, source },
                Some(LeaseEvent::Waits(now)) if now == reason => continue,
                Some(LeaseEvent::Waits(now)) => {
                    reason.clone_from(&now);
                    PipeEvent::Waiting { id, reason: now }
                }
                Some(LeaseEvent::Granted(now)) => {
                    granted = true;
                    PipeEvent::granted(id, now)
                }
                Some(LeaseEvent::Revoked(RevokeNotice { remaining, wanted_by })) => {
                    PipeEvent::Revoked { id, by: wanted_by, grace_left_ms: millis(remaining) }
                }
                Some(LeaseEvent::Lost) => PipeEvent::Lost { id },
                Some(LeaseEvent::Away(reason)) => PipeEvent::Away { id, reason },
                Some(LeaseEvent::Back) => PipeEvent::Back { id },
                Some(LeaseEvent::Failed(error)) => {
                    self.over.store(true, Ordering::Release);
                    PipeEvent::Failed { id, message: chain(&error) }
                }
            };
            // Sending cannot fail: the writer outlives every sender.
            let _ = out.send(tell);
        }
    }
}

impl PipeEvent {
    fn granted(id: String, granted: Granted) -> Self {
        let cuda_visible_devices = granted.visible();
        let part = |GrantedPart { device, bytes, uuid }| PipedPart { device, bytes, uuid };
        let parts = granted.parts.into_iter().map(part).collect();
        Self::Granted { id, lease: granted.lease, parts, cuda_visible_devices }
    }
}

/// Reads the lines of standard input, until it ends.
fn read(lines: &mpsc::UnboundedSender<Vec<u8>>) {
    let mut input = io::stdin().lock();
    loop {
        let mut line = Vec::new();
        // Input that cannot be read counts as ended.
        if !input.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            return;
        }
        if lines.send(line).is_err() {
            return;
        }
    }
}

/// Writes messages until every sender is dropped.
fn write(told: &Receiver<PipeEvent>) {
    while let Ok(tell) = told.recv() {
        let Ok(mut line) = serde_json::to_vec(&tell) else { continue };
        line.push(b'\n');
        let mut out = terminal::out();
        // A caller that does not read will close the other pipe too, which ends this process.
        let _ = out.write_all(&line).and_then(|()| out.flush());
    }
}
