//! The text host: a process that loads a model's template and tokenizer once, and forks a renderer for each stream
//! from its worker. It reads no request itself, so no request can harm it.
//!
//! A renderer shares the loaded vocabulary with its host, so another one costs about a millisecond and little memory.
//! It works on one question at a time: a question that exceeds a limit is alone in the process that ends.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use model_boss_engine::text::{Text, TextError};
use model_boss_protocol::{TextLimits, WorkerExit};
use model_boss_weights::is_read_failure;
use nix::sys::resource::{RLIM_INFINITY, Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, alarm, dup2_stderr, dup2_stdin, fork};

use super::frame::{Frame, LARGEST_QUESTION, frame};
use super::message::{TextFacts, TextLoad, TextLoaded};
use super::order::{HostOrder, OrderStream, Passed, RendererEnd};
use super::renderer::{self, RendererWatch};
use crate::failure::LoadFailure;
use crate::terminal::say;

/// The hidden command of the worker's program that is the text host.
pub(crate) const COMMAND: &str = "text-host";

/// Memory for loading, in multiples of what one request may use: a vocabulary's file is in memory as text and as
/// tables.
const LOAD_MEMORY: u64 = 4;

/// Seconds of computing that loading may take. The largest vocabularies in use need two.
pub(super) const LOAD_SECONDS: u64 = 60;

/// Bytes that a renderer may grow by before it is replaced.
const WORN: i64 = 64 << 20;

/// Runs the host until its worker has ended. Only the worker sees how it ended.
pub(crate) fn run() -> ExitCode {
    match host() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(error);
            ExitCode::FAILURE
        }
    }
}

fn host() -> io::Result<()> {
    let mut control = shut_out()?;
    let Some(load) = Frame::read(&mut control, LARGEST_QUESTION)? else { return Ok(()) };
    let load: TextLoad = load.head()?;
    let limits = load.limits;
    limit(Resource::RLIMIT_DATA, data_in_use().saturating_add(limits.memory.0.saturating_mul(LOAD_MEMORY)))?;
    limit(Resource::RLIMIT_CPU, LOAD_SECONDS)?;
    model_boss_engine::text::keep_to_one_thread();
    let text = match on_a_stack(limits, move || load.source.load())? {
        Ok(text) => text,
        Err(error) => {
            let failure = load_failure(&error);
            let failed = TextLoaded::Failed { exit: failure.exit().code(), message: failure.to_string() };
            return control.write_all(&frame(&failed, &[])?);
        }
    };
    limit(Resource::RLIMIT_CPU, RLIM_INFINITY)?;
    let facts = TextFacts::of(&text);
    control.write_all(&frame(&TextLoaded::Ready(facts), &text.vocabulary.to_wire())?)?;
    serve(OrderStream::new(control), &text, limits)
}

fn load_failure(error: &TextError) -> LoadFailure {
    let exit = if is_read_failure(error) { WorkerExit::ReadFailed } else { WorkerExit::BadModel };
    LoadFailure::new(exit, error)
}

/// Closes all resources of the worker, and takes the stream of orders off standard input.
fn shut_out() -> io::Result<UnixStream> {
    #[cfg(target_os = "linux")]
    {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        nix::sys::prctl::set_name(c"mb-text")?;
        // The system should kill this process first when memory is short, since no data is lost with it. It may
        // refuse the setting.
        let _ = fs::write("/proc/self/oom_score_adj", "1000");
    }
    // These signals are for the worker, which drains: its remaining answers need their prompts. The stream's end ends
    // this process.
    let mut polite = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        polite.add(signal);
    }
    polite.thread_block()?;
    let open: Vec<i32> = fs::read_dir("/dev/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2)
        .collect();
    for fd in open {
        // The one of the listing itself is closed already.
        let _ = nix::unistd::close(fd);
    }
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    dup2_stdin(fs::File::open("/dev/null")?)?;
    limit(Resource::RLIMIT_CORE, 0)?;
    limit(Resource::RLIMIT_FSIZE, 0)?;
    // Panics are returned as answers.
    std::panic::set_hook(Box::new(|_| ()));
    Ok(control)
}

/// Runs something on a thread whose stack is as large as the limits say.
fn on_a_stack<T: Send>(limits: TextLimits, run: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let size = usize::try_from(limits.stack.0).unwrap_or(usize::MAX);
        let thread = thread::Builder::new().name("text".to_owned()).stack_size(size).spawn_scoped(scope, run)?;
        thread.join().map_err(|_| io::Error::other("it failed in a way that was not foreseen"))
    })
}

/// Carries out what the worker orders, until it is gone.
fn serve(mut orders: OrderStream, text: &Text, limits: TextLimits) -> io::Result<()> {
    let mut renderers = BTreeSet::new();
    while let Some(order) = orders.next()? {
        match order {
            HostOrder::Open(Passed { stream, words }) => {
                let pid = open(stream, words, text, limits);
                renderers.extend(pid.as_ref().ok());
                orders.opened(pid)?;
            }
            HostOrder::End(pid) if renderers.remove(&pid) => orders.ended(end(pid))?,
            HostOrder::End(_) => orders.ended(RendererEnd::Unknown)?,
        }
    }
    // Needed where the system does not end renderers with their parent.
    for pid in renderers {
        end(pid);
    }
    Ok(())
}

/// Ends a renderer, if it has not ended by itself, and returns how it ended.
fn end(pid: i32) -> RendererEnd {
    let pid = Pid::from_raw(pid);
    // The process is our own child and was not reaped, so the number is still its own.
    let _ = kill(pid, Signal::SIGKILL);
    loop {
        return match waitpid(pid, None) {
            Ok(WaitStatus::Exited(_, code)) => RendererEnd::Exited(code),
            Ok(WaitStatus::Signaled(_, signal, _)) => RendererEnd::Signal(signal as i32),
            Err(nix::errno::Errno::EINTR) => continue,
            Ok(_) | Err(_) => RendererEnd::Unknown,
        };
    }
}

/// Forks a renderer. Returns in the host only.
fn open(stream: OwnedFd, words: OwnedFd, text: &Text, limits: TextLimits) -> io::Result<i32> {
    #[allow(unsafe_code)]
    // SAFETY: this process has one thread (that of loading was joined), so no lock is held by a thread that the child
    // lacks.
    let forked = unsafe { fork() }?;
    match forked {
        ForkResult::Parent { child } => Ok(child.as_raw()),
        ForkResult::Child => {
            let served = render(stream.into(), &words, text, limits);
            std::process::exit(i32::from(served.is_err()))
        }
    }
}

/// A renderer's life.
fn render(stream: UnixStream, words: &OwnedFd, text: &Text, limits: TextLimits) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The runtime's last words go to the worker, and the host's own stream of orders is not for this
    // process.
    dup2_stderr(words)?;
    close_all_but(&stream)?;
    let allowed = limits.stack.0.saturating_add(limits.memory.0);
    limit(Resource::RLIMIT_DATA, data_in_use().saturating_add(allowed))?;
    let mut watch = HostLimits { time: limits.time, begun_with: resident()? };
    on_a_stack(limits, || renderer::serve(stream, text, &mut watch))?
}

/// Closes the streams inherited by the fork.
fn close_all_but(stream: &UnixStream) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    let keep = stream.as_raw_fd();
    let open: Vec<i32> = fs::read_dir("/dev/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2 && *fd != keep)
        .collect();
    for fd in open {
        let _ = nix::unistd::close(fd);
    }
    Ok(())
}

/// Ends the process at its limits, and sees the size that it has grown to.
struct HostLimits {
    time: Duration,
    begun_with: i64,
}

impl RendererWatch for HostLimits {
    fn begin(&mut self) {
        // The worker counts to the limit; this counts on when the worker cannot.
        let seconds = u32::try_from(self.time.as_secs()).unwrap_or(u32::MAX).saturating_add(2);
        alarm::set(seconds);
    }

    fn end(&mut self) -> bool {
        alarm::cancel();
        resident().is_ok_and(|bytes| bytes - self.begun_with > WORN)
    }
}

/// The most memory that this process has had resident.
fn resident() -> io::Result<i64> {
    let unit = if cfg!(target_os = "macos") { 1 } else { 1024 };
    Ok(getrusage(UsageWho::RUSAGE_SELF)?.max_rss() * unit)
}

/// Sets a limit, below the one that this process was started with.
fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let (_, hard) = getrlimit(resource)?;
    Ok(setrlimit(resource, most.min(hard), hard)?)
}

/// The bytes that the limit on data counts for this process; zero where the system does not report them.
fn data_in_use() -> u64 {
    let pages = || fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(5)?.trim().parse::<u64>().ok();
    pages().unwrap_or(0) * 4096
}
