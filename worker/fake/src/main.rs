//! The fake worker: the whole contract between coordinator and worker, with canned words in place of a model.
//!
//! This module owns the process: gate, lifeline, exit codes. All other behaviour is data. It is set in
//! `[custom.fake]` of the manifest, `fake.json` in the model's folder, `FAKE_WORKER_*`, or by a test over its control
//! socket. The fake worker also serves benchmarks, so its own cost per token is a few microseconds.

mod canned;
mod control;
mod decode;
mod echo;
mod failure;
mod fake_worker;
mod hearing;
mod llama_server;
mod painting;
mod received;
mod rough;
mod serve;
mod shapes;
mod speech;
mod whole_answer;

use std::collections::BTreeMap;
use std::io::BufRead;
use std::process::ExitCode;
use std::sync::Arc;

use model_boss_fake_worker::behaviour::Behaviour;
use model_boss_protocol::{WorkerExit, WorkerOrder, WorkerSpec};
use tokio::sync::mpsc;

use crate::control::Control;
use crate::failure::{FakeFailure, exit_code, exit_now};
use crate::shapes::Manner;

fn main() -> ExitCode {
    match run() {
        Ok(()) => exit_code(WorkerExit::Clean),
        Err(failure) => {
            let mut text = failure.to_string();
            let mut cause = std::error::Error::source(&failure);
            while let Some(error) = cause {
                text = format!("{text}: {error}");
                cause = error.source();
            }
            eprintln!("model-boss-fake-worker: {text}");
            failure.exit().map_or(ExitCode::FAILURE, exit_code)
        }
    }
}

fn run() -> Result<(), FakeFailure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (spec, manner) = match args.split_first() {
        Some((name, args)) if name == llama_server::NAME => (llama_server::spec(args)?, Manner::LlamaServer),
        _ => (gate()?, Manner::Worker),
    };
    let (order, orders) = mpsc::unbounded_channel();
    if manner == Manner::Worker {
        watch_lifeline(order);
    }
    // llama-server's command line sets no behaviour.
    let own = if manner == Manner::Worker { spec.settings.clone() } else { BTreeMap::new() };
    let behaviour = Behaviour::read(&own, &spec.source, std::env::vars())?;
    let (behaviour, control) = Control::open(behaviour, &spec)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(FakeFailure::Runtime)?;
    runtime.block_on(serve::serve(Arc::new(spec), Arc::new(behaviour), Arc::new(control), manner, orders))
}

/// Waits for the start line. The call reads byte by byte through std's own buffer, from which the lifeline continues to
/// read.
fn gate() -> Result<WorkerSpec, FakeFailure> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(FakeFailure::Gate)?;
    Ok(WorkerSpec::from_line(&line)?)
}

/// Passes orders on, and ends the process as soon as standard input ends, which means that the coordinator has ended.
fn watch_lifeline(order: mpsc::UnboundedSender<WorkerOrder>) {
    std::thread::spawn(move || {
        let mut line = Vec::new();
        while matches!(std::io::stdin().lock().read_until(b'\n', &mut line), Ok(n) if n > 0) {
            if let Some(read) = WorkerOrder::from_line(&line) {
                // Without a receiver the process is ending.
                _ = order.send(read);
            }
            line.clear();
        }
        exit_now(WorkerExit::Clean.code());
    });
}
