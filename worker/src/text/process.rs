//! The worker's text processes: its launcher, the host that this one starts, and the host's renderers.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model_boss_engine::text::Vocabulary;
use model_boss_protocol::WorkerExit;

use super::frame::{Frame, frame};
use super::launcher;
use super::message::{TextFacts, TextLoad, TextLoaded};
use super::order::{self, RendererEnd};
use super::text_host::{OpenedRenderer, StartHost, TextHost};
use crate::failure::LoadFailure;

/// A process that does not carry an order out within this time is taken for dead.
const ORDER: Duration = Duration::from_secs(10);

/// Last words are as long as the runtime makes them; what a file could make of them has an end.
const WORDS: u64 = 400;

/// The vocabulary of the answer has a limit of its own.
const LARGEST_LOADED: usize = 128 << 20;

/// Variables that the launcher inherits from the worker's environment. They are the time zone, for templates that ask
/// for the date, and the path of the program's libraries.
const INHERITED: [&str; 2] = ["TZ", "LD_LIBRARY_PATH"];

/// Starts the launcher of a worker's text hosts, and gives it what they load. It ends with the calling thread, however
/// the worker ends. The function that is returned starts a host.
pub(crate) fn start_launcher(load: &TextLoad) -> io::Result<StartHost> {
    let (mut orders, theirs) = UnixStream::pair()?;
    let environment = INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    // The process ends when its stream does, and is reaped with this one.
    drop(
        Command::new(program()?)
            .arg0("model-boss-worker")
            .arg(launcher::COMMAND)
            .env_clear()
            .envs(environment)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?,
    );
    orders.write_all(&frame(load, &[])?)?;
    orders.set_read_timeout(Some(ORDER))?;
    let launcher = TextLauncher(Arc::new(Mutex::new(orders)));
    Ok(Box::new(move || {
        let started = HostProcess::start(&launcher)?;
        Ok(started.map(|host| -> Box<dyn TextHost> { Box::new(host) }))
    }))
}

/// The stream of orders to the launcher.
#[derive(Clone, Debug)]
struct TextLauncher(Arc<Mutex<UnixStream>>);

impl TextLauncher {
    fn order<T>(&self, order: impl FnOnce(&mut UnixStream) -> io::Result<T>) -> io::Result<T> {
        order(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A running text host.
#[derive(Debug)]
pub(super) struct HostProcess {
    launcher: TextLauncher,
    pid: i32,
    control: UnixStream,
    words: UnixStream,
}

impl HostProcess {
    /// The outer error means that the launcher is gone, the inner one that the system has no room.
    fn start(launcher: &TextLauncher) -> io::Result<io::Result<Self>> {
        let (control, theirs) = UnixStream::pair()?;
        let (words, their_words) = UnixStream::pair()?;
        let pid = launcher.order(|orders| order::open(orders, &theirs.into(), &their_words.into()))?;
        Ok(pid.map(|pid| Self { launcher: launcher.clone(), pid, control, words }))
    }

    /// Ends the process, if it has not ended by itself, and returns how it ended.
    fn reap(&self) -> RendererEnd {
        self.launcher.order(|orders| order::end(orders, self.pid)).unwrap_or(RendererEnd::Unknown)
    }

    /// The failure for a load that ended without an answer.
    fn load_died(&mut self, load: &TextLoad) -> LoadFailure {
        // The host closed its stream, so it has ended or is about to.
        let own = matches!(
            self.reap(),
            RendererEnd::Signal(nix::libc::SIGABRT | nix::libc::SIGSEGV | nix::libc::SIGBUS | nix::libc::SIGXCPU)
        );
        let words = last_words(&self.words);
        if !own {
            let message = format!("the process that loads the chat template and the tokenizer was ended: {words}");
            return LoadFailure::message(WorkerExit::OutOfMemory, message);
        }
        let (memory, stack) = (load.limits.memory, load.limits.stack);
        LoadFailure::message(
            WorkerExit::BadModel,
            format!(
                "the chat template or the tokenizer of {} cannot be loaded: it goes over what it may use (text.memory is \
                 {memory}, text.stack is {stack}): {words}",
                load.source.path().display()
            ),
        )
    }
}

/// This program itself, also after its file was replaced by a newer one.
fn program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok(PathBuf::from("/proc/self/exe")) } else { std::env::current_exe() }
}

impl TextHost for HostProcess {
    fn load(&mut self, load: &TextLoad) -> Result<(TextFacts, Vocabulary), LoadFailure> {
        let loaded = Frame::read(&mut self.control, LARGEST_LOADED);
        let Ok(Some(loaded)) = loaded else { return Err(self.load_died(load)) };
        let internal = |error: &(dyn std::error::Error + 'static)| LoadFailure::new(WorkerExit::DeviceLost, error);
        match loaded.head().map_err(|error| internal(&error))? {
            TextLoaded::Ready(facts) => {
                let vocabulary = Vocabulary::from_wire(loaded.tail()).map_err(|error| internal(&error))?;
                self.control.set_read_timeout(Some(ORDER)).map_err(|error| internal(&error))?;
                Ok((facts, vocabulary))
            }
            TextLoaded::Failed { exit, message } => {
                let exit = WorkerExit::from_code(exit).unwrap_or(WorkerExit::BadModel);
                Err(LoadFailure::message(exit, message))
            }
        }
    }

    fn open(&mut self) -> io::Result<io::Result<OpenedRenderer>> {
        let (stream, theirs) = UnixStream::pair()?;
        let (words, their_words) = UnixStream::pair()?;
        let pid = order::open(&mut self.control, &theirs.into(), &their_words.into())?;
        Ok(pid.map(|pid| OpenedRenderer { pid, stream, words: Some(words) }))
    }

    fn end(&mut self, pid: i32) -> io::Result<RendererEnd> {
        order::end(&mut self.control, pid)
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        // Its renderers end with it.
        self.reap();
    }
}

/// The reason why a process ended: the first line that its runtime wrote to standard error.
pub(super) fn last_words(mut words: &UnixStream) -> String {
    let mut bytes = Vec::new();
    // No other process writes to this stream, so its end has arrived or is about to.
    let _ = words.set_read_timeout(Some(Duration::from_millis(100)));
    let _ = Read::by_ref(&mut words).take(WORDS).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.split(|c: char| c.is_control()).map(str::trim).filter(|line| !line.is_empty());
    lines.next().unwrap_or("it did not say why").to_owned()
}
