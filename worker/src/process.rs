//! The life of the process: gate, port, engine, signals, exit code.

use std::io;
use std::net::Ipv4Addr;
use std::num::NonZero;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use model_boss_protocol::{
    Category, InstructionSet, SandboxMode, SandboxState, WorkerExit, WorkerSpec, WorkerSpecError,
};
use model_boss_sandbox::{AllowedFiles, ProcessKind, confine};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

use crate::args::Serve;
use crate::backend::{ModelLoaders, WorkerBackend};
use crate::command_line::{CommandLine, WorkerCommand, write_manual};
use crate::commands::{bench, disk, inspect, prompt, residency, text_cost};
use crate::cpu_share::AUTOGROUP;
use crate::defaults::RequestDefaults;
use crate::engine_thread::WorkerHelpers;
use crate::failure::LoadFailure;
use crate::gate::GateError;
use crate::model_files::{allow_common_files, allow_model_files};
use crate::state::{Access, WorkerState};
use crate::terminal::{self, LogLines, print, say};
use crate::text::TextLoad;
use crate::{about, allocator, by_hand, engine_thread, gate, http, speaking, text, threads};

/// Connections that wait to be accepted.
const WAITING: i32 = 1024;

/// Runs a worker from its command line to its exit code. After a failure, the last line on stderr states the reason.
pub fn run(backend: WorkerBackend) -> ExitCode {
    let CommandLine { command, cpu_features, threads: asked } = CommandLine::parse();
    match command {
        WorkerCommand::TextHost => return text::run_launcher(),
        WorkerCommand::SpeechHost => return speaking::run_host(),
        WorkerCommand::SpeechKeeper => return speaking::run_keeper(),
        _ => {}
    }
    allocator::keep_freed_buffers();
    let WorkerBackend { instructions, cuda, load, convert, index, synth } = backend;
    let choose = |set| {
        let chosen = instructions(set);
        chosen.map_err(|error| LoadFailure::message(WorkerExit::BadSpec, format!("cpu_features: {error}")))
    };
    let result = match command {
        WorkerCommand::Serve(serve) => {
            log_to_stderr();
            start(&serve, (cpu_features, asked), choose, load)
        }
        // The sandbox wants a process of one thread.
        WorkerCommand::About => choose(cpu_features).map(|instructions| about::run(instructions, cuda)),
        command => {
            choose(cpu_features).and_then(|_| threads::start(&threads::plan_for(asked))).and_then(|_| match command {
                WorkerCommand::Inspect(inspect) => {
                    inspect::run(&inspect).map(print).map_err(|error| LoadFailure::new(WorkerExit::BadModel, &error))
                }
                WorkerCommand::Convert(asked) => convert(&asked),
                WorkerCommand::Index(asked) => index(&asked),
                WorkerCommand::Synth(asked) => synth(&asked),
                WorkerCommand::Render(asked) => prompt::render(&asked),
                WorkerCommand::Tokenize(asked) => prompt::tokenize(&asked),
                WorkerCommand::Detokenize(asked) => prompt::detokenize(&asked),
                WorkerCommand::Bench(asked) => bench::run(&asked, load.decoder),
                WorkerCommand::Residency(asked) => residency::run(&asked, load.decoder),
                WorkerCommand::Man { folder } => write_manual(&folder),
                WorkerCommand::Disk(asked) => disk::run(&asked),
                WorkerCommand::Text(asked) => text_cost::run(&asked),
                // They are handled above.
                WorkerCommand::Serve(_)
                | WorkerCommand::TextHost
                | WorkerCommand::SpeechHost
                | WorkerCommand::SpeechKeeper
                | WorkerCommand::About => Ok(()),
            })
        }
    };
    let exit = match result {
        Ok(()) => WorkerExit::Clean,
        Err(failure) => {
            say(format_args!("model-boss-worker: {failure}"));
            failure.exit()
        }
    };
    ExitCode::from(u8::try_from(exit.code()).unwrap_or(1))
}

fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("MODEL_BOSS_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = LogLines { colours: terminal::err_is_terminal() };
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(move || lines).with_ansi(lines.colours).init();
}

fn start(
    serve: &Serve,
    (cpu_features, asked): (Option<InstructionSet>, Option<NonZero<u32>>),
    choose: impl FnOnce(Option<InstructionSet>) -> Result<InstructionSet, LoadFailure>,
    load: ModelLoaders,
) -> Result<(), LoadFailure> {
    let (spec, access) = match &serve.model {
        Some(model) => {
            let spec = by_hand::spec(serve, model).map_err(|error| LoadFailure::new(WorkerExit::BadSpec, &error))?;
            say("run by hand: this worker holds no lease and asks for no token");
            (spec, Access::Open)
        }
        None => {
            let spec = gate::wait_for_spec().map_err(|error| LoadFailure::new(gate_exit(&error), &error))?;
            let token = spec.token.clone();
            (spec, Access::Token(token))
        }
    };
    let instructions = choose(cpu_features.or(spec.cpu_features))?;
    if let Some(warning) = instructions.warning() {
        warn!("{warning}");
    }
    info!(%instructions, "products on the CPU");
    let threads = threads::plan_for(asked.or(spec.threads));
    let bad_spec = |message: String| LoadFailure::message(WorkerExit::BadSpec, message);
    let defaults = RequestDefaults::new(&spec.params).map_err(|error| bad_spec(format!("params: {error}")))?;
    let checked = http::check_defaults(spec.category, &defaults);
    checked.map_err(|error| bad_spec(format!("the manifest's params: {}", error.message)))?;
    let listener = listen(spec.port)?;
    let helpers = start_helpers(&spec)?;
    // The sandbox begins: no line above looks at a model's file, and none below starts a program or opens a socket.
    let sandbox = confined(&spec)?;
    threads::start(&threads)?;
    let shares = match access {
        Access::Open => watch::channel(None).1,
        Access::Token(_) => gate::watch_lifeline().map_err(|error| LoadFailure::new(gate_exit(&error), &error))?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| LoadFailure::new(WorkerExit::DeviceLost, &error))?;
    let worker = Arc::new(WorkerState::new(spec, access, defaults, (instructions, threads, shares), sandbox.clone()));
    let result = runtime.block_on(serve_until_told(worker, listener, (load, helpers)));
    // Work left on the blocking threads is for clients that are gone.
    runtime.shutdown_background();
    result.map_err(|failure| failure.within(&sandbox))
}

fn gate_exit(error: &GateError) -> WorkerExit {
    match error {
        GateError::Spec(WorkerSpecError::Closed) => WorkerExit::Clean,
        GateError::Spec(WorkerSpecError::Malformed(_)) | GateError::Read(_) | GateError::Thread(_) => {
            WorkerExit::BadSpec
        }
    }
}

/// Starts the processes that a confined worker cannot start: those that read texts, or the host of a program that
/// speaks.
fn start_helpers(spec: &WorkerSpec) -> Result<WorkerHelpers, LoadFailure> {
    let no_room = |error: io::Error| LoadFailure::new(WorkerExit::OutOfMemory, &error);
    match (spec.category, &spec.speech) {
        (Category::Tts, Some(program)) => {
            speaking::find_program(program).map_err(|why| LoadFailure::message(WorkerExit::BadSpec, why))?;
            let host = speaking::start_host(program, &spec.source, spec.sandbox);
            host.map(|host| WorkerHelpers::Program(Box::new(host))).map_err(no_room)
        }
        // Their texts are short, and read by parts of the model.
        (Category::Tts | Category::Diffusion, _) => Ok(WorkerHelpers::None),
        _ => text::start_launcher(&TextLoad::of_worker(spec)).map(WorkerHelpers::Texts).map_err(no_room),
    }
}

/// Takes the port.
fn listen(port: u16) -> Result<std::net::TcpListener, LoadFailure> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).and_then(|listener| {
        rustix::net::listen(&listener, WAITING)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|error| {
        let exit = if error.kind() == io::ErrorKind::AddrInUse { WorkerExit::PortInUse } else { WorkerExit::BadSpec };
        LoadFailure::message(exit, format!("cannot listen on 127.0.0.1:{port}: {error}"))
    })
}

/// Confines this process to the model's files, and to the socket that it has.
fn confined(spec: &WorkerSpec) -> Result<SandboxState, LoadFailure> {
    let mut files = AllowedFiles::default();
    allow_model_files(&spec.source, &mut files);
    if let Some(draft) = &spec.draft {
        allow_model_files(&draft.source, &mut files);
    }
    allow_common_files(&mut files);
    // Free memory, the limits of the process's groups, and what the allocator asks before it gives memory back.
    for path in ["/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup", "/proc/sys/vm/overcommit_memory"] {
        files.read(path);
    }
    files.write(AUTOGROUP);
    let confined = confine(spec.sandbox, spec.sandbox.exempts(&spec.device), ProcessKind::Worker, &files);
    let state = confined.map_err(|error| LoadFailure::new(WorkerExit::BadSpec, &error))?;
    if spec.sandbox == SandboxMode::Off || state.is_whole() {
        info!("sandbox: {state}");
    } else {
        warn!("sandbox: {state}");
    }
    Ok(state)
}

/// Loads behind the port, and serves until a signal or the engine's end.
async fn serve_until_told(
    worker: Arc<WorkerState>,
    listener: std::net::TcpListener,
    (load, helpers): (ModelLoaders, WorkerHelpers),
) -> Result<(), LoadFailure> {
    let listener = TcpListener::from_std(listener);
    let listener = listener.map_err(|error| LoadFailure::new(WorkerExit::DeviceLost, &error))?;
    let address = listener.local_addr().map_err(|error| LoadFailure::new(WorkerExit::PortInUse, &error))?;
    let mut signals = Signals::new().map_err(|error| LoadFailure::new(WorkerExit::BadSpec, &error))?;
    info!(%address, model = %worker.spec.model, device = %worker.spec.device, "listening; loading the model");
    let mut engine = engine_thread::start(Arc::clone(&worker), load, helpers)
        .map_err(|error| LoadFailure::new(WorkerExit::OutOfMemory, &error))?;
    let mut server = http::HttpServer::start(listener, Arc::clone(&worker));
    tokio::select! {
        failure = &mut engine => return Err(ended(failure)),
        () = signals.next() => {}
    }
    if !worker.is_ready() {
        info!("told to stop while loading");
        return Ok(());
    }
    info!("draining: no new requests, those that run may end");
    worker.drain();
    tokio::select! {
        () = server.drain() => Ok(()),
        failure = &mut engine => Err(ended(failure)),
        () = signals.next() => Ok(()),
    }
}

fn ended(failure: Result<LoadFailure, tokio::sync::oneshot::error::RecvError>) -> LoadFailure {
    failure.unwrap_or_else(|_| LoadFailure::message(WorkerExit::DeviceLost, "the engine's thread is gone"))
}

/// The two signals that ask a worker to end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
