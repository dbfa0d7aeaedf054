//! The worker's text host process: its start, the load of the model's text side, and its renderers.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use model_boss_engine::text::Vocabulary;
use model_boss_protocol::WorkerExit;

use super::frame::{Frame, frame};
use super::host;
use super::message::{TextFacts, TextLoad, TextLoaded};
use super::order::{self, RendererEnd};
use super::text_host::{OpenedRenderer, StartHost, TextHost};
use crate::failure::LoadFailure;

/// A host that does not carry an order out within this time is taken for dead.
const ORDER: Duration = Duration::from_secs(10);

/// Last words are as long as the runtime makes them; what a file could make of them has an end.
const WORDS: u64 = 400;

/// The vocabulary of the answer has a limit of its own.
const LARGEST_LOADED: usize = 128 << 20;

/// Variables that the host inherits from the worker's environment. They are the time zone, for templates that ask for
/// the date, and the path of the program's libraries.
const INHERITED: [&str; 2] = ["TZ", "LD_LIBRARY_PATH"];

/// Starts the text host that a worker has: a process.
pub(crate) fn start_process() -> StartHost {
    Box::new(|| Ok(Box::new(HostProcess::start()?)))
}

/// A running text host.
#[derive(Debug)]
pub(super) struct HostProcess {
    child: Child,
    control: UnixStream,
    words: UnixStream,
}

impl HostProcess {
    /// Starts the process. It ends with the thread that calls this function, however the worker ends.
    pub(super) fn start() -> io::Result<Self> {
        let (control, theirs) = UnixStream::pair()?;
        let (words, their_words) = UnixStream::pair()?;
        let environment = INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        let child = Command::new(program()?)
            .arg0("model-boss-worker")
            .arg(host::COMMAND)
            .env_clear()
            .envs(environment)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::from(OwnedFd::from(their_words)))
            .spawn()?;
        Ok(Self { child, control, words })
    }

    /// The failure for a load that ended without an answer.
    fn load_died(&mut self, load: &TextLoad) -> LoadFailure {
        // The host closed its stream, so it has ended or is about to.
        let _ = self.child.kill();
        let status = self.child.wait();
        let own = status.as_ref().is_ok_and(|status| {
            matches!(
                status.signal(),
                Some(nix::libc::SIGABRT | nix::libc::SIGSEGV | nix::libc::SIGBUS | nix::libc::SIGXCPU)
            )
        });
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
        let loaded = frame(load, &[])
            .and_then(|frame| self.control.write_all(&frame))
            .and_then(|()| Frame::read(&mut self.control, LARGEST_LOADED));
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
        let _ = self.child.kill();
        let _ = self.child.wait();
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
