//! Starts worker processes behind their guards, all on one permanent OS thread.
//!
//! A parent-death signal is tied to the *thread* that forked. A worker spawned from a pool thread would die when the
//! pool ends that thread; this thread ends only with the process.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc;

use tokio::process::Child;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use crate::environment::ChildEnvironment;
use crate::guard::{Guarded, Lifeline, end_orphans};

/// The handle of the spawning thread.
#[derive(Clone, Debug)]
pub struct Spawner {
    orders: mpsc::Sender<SpawnRequest>,
}

/// A worker to start. Standard input, output and error are pipes.
#[derive(Clone, Debug)]
pub struct WorkerLaunch {
    /// The worker's program.
    pub program: PathBuf,
    /// The one argument of the program.
    pub argument: &'static str,
    /// The UUIDs of the GPUs the program may see, joined by commas; empty for none (RC-16).
    pub visible_gpus: String,
    /// The environment that the program inherits.
    pub environment: ChildEnvironment,
}

/// A started program: its outer guard, and the lifeline that keeps it running.
pub type StartedProgram = (Child, Lifeline);

struct SpawnRequest {
    program: Guarded,
    reply: oneshot::Sender<io::Result<StartedProgram>>,
}

impl Spawner {
    /// Starts the thread. `runtime` reaps the children, and the orphans of guards that were killed.
    pub fn start(runtime: Handle) -> io::Result<Self> {
        runtime.spawn(collect_orphans(signal(SignalKind::child())?));
        let (orders, inbox) = mpsc::channel::<SpawnRequest>();
        std::thread::Builder::new().name("spawner".into()).spawn(move || {
            let _reaper = runtime.enter();
            while let Ok(order) = inbox.recv() {
                // If the caller was dropped, so is the reply with the lifeline, which ends the program.
                let _ = order.reply.send(order.program.spawn());
            }
            // Every handle was dropped, but children of this thread may be alive: the thread must outlive them.
            loop {
                std::thread::park();
            }
        })?;
        Ok(Self { orders })
    }

    /// Starts one worker.
    pub async fn spawn(&self, launch: WorkerLaunch) -> io::Result<StartedProgram> {
        self.spawn_program(program(&launch)?).await
    }

    /// Starts a program behind its guards.
    pub async fn spawn_program(&self, program: Guarded) -> io::Result<StartedProgram> {
        let (reply, started) = oneshot::channel();
        let ended = || io::Error::other("the thread that starts processes has ended");
        self.orders.send(SpawnRequest { program, reply }).map_err(|_| ended())?;
        started.await.map_err(|_| ended())?
    }
}

/// Searches for orphans whenever a child ends: a killed guard may have left some.
async fn collect_orphans(mut children: Signal) {
    while children.recv().await.is_some() {
        if !spawn_blocking(end_orphans).await.unwrap_or(true) {
            tracing::warn!("processes that a killed guard left behind do not end");
        }
    }
}

fn program(launch: &WorkerLaunch) -> io::Result<Guarded> {
    let mut program = Guarded::new(&launch.program, &launch.environment)?;
    program
        .command()
        .arg(launch.argument)
        .env("CUDA_VISIBLE_DEVICES", &launch.visible_gpus)
        .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok(program)
}
