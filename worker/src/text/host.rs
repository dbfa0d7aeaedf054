//! The text host: a process that loads a model's template and tokenizer once, and forks a renderer for each stream
//! from its worker. It reads no request itself, so no request can harm it.
//!
//! A renderer shares the loaded vocabulary with its host, so another one costs about a millisecond and little memory.
//! It works on one question at a time: a question that exceeds a limit is alone in the process that ends.

use std::fs;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use model_boss_engine::text::{Text, TextError, Vocabulary};
use model_boss_protocol::{SandboxMode, TextLimits, WorkerExit};
use model_boss_sandbox::{AllowedFiles, ProcessKind, confine};
use model_boss_weights::is_read_failure;
use nix::sys::resource::{RLIM_INFINITY, Resource};
use nix::unistd::alarm;

use super::forks::{self, close_all_but, close_other_than};
use super::frame::frame;
use super::limits::{DataInUse, limit, resident};
use super::message::{TextFacts, TextLoad, TextLoaded, TextPart, TextSource};
use super::order::OrderStream;
use super::renderer::{self, RendererWatch};
use crate::failure::LoadFailure;
use crate::model_files::{allow_common_files, allow_model_files};

/// Memory for loading, in multiples of what one request may use: a vocabulary's file is in memory as text and as
/// tables.
const LOAD_MEMORY: u64 = 4;

/// Seconds of computing that loading may take. The largest vocabularies in use need two.
pub(super) const LOAD_SECONDS: u64 = 60;

/// Bytes that a renderer may grow by before it is replaced.
const WORN: i64 = 64 << 20;

/// Descriptors that a text process may have; it needs a dozen. A renderer closes what it inherits by trying all: the
/// list of those that are open is out of its reach.
const MOST_DESCRIPTORS: i32 = 128;

/// A host's life, in a process that the launcher forked.
pub(super) fn live(mut control: UnixStream, load: &TextLoad) -> io::Result<()> {
    close_all_but(&control)?;
    // The system should kill this process first when memory is short, since no data is lost with it. It may refuse the
    // setting.
    #[cfg(target_os = "linux")]
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    let limits = load.limits;
    let data = DataInUse::of_this_process();
    limit(Resource::RLIMIT_NOFILE, u64::from(MOST_DESCRIPTORS.unsigned_abs()))?;
    limit(Resource::RLIMIT_DATA, data.bytes().saturating_add(limits.memory.0.saturating_mul(LOAD_MEMORY)))?;
    limit(Resource::RLIMIT_CPU, LOAD_SECONDS)?;
    let text = match confined(load).and_then(|()| text_of(load)) {
        Ok(text) => text,
        Err(failure) => {
            let failed = TextLoaded::Failed { exit: failure.exit().code(), message: failure.to_string() };
            return control.write_all(&frame(&failed, &[])?);
        }
    };
    limit(Resource::RLIMIT_CPU, RLIM_INFINITY)?;
    let facts = TextFacts::of(&text);
    control.write_all(&frame(&TextLoaded::Ready(facts), &text.vocabulary.to_wire())?)?;
    forks::serve(OrderStream::new(control), |stream| render(stream, &text, limits, &data))
}

/// Confines this process, and the renderers that it will fork, to the model's files.
fn confined(load: &TextLoad) -> Result<(), LoadFailure> {
    let mut files = AllowedFiles::default();
    allow_model_files(load.source.path(), &mut files);
    if let Some(draft) = &load.draft {
        allow_model_files(draft, &mut files);
    }
    allow_common_files(&mut files);
    // No text process touches a device, so the worker's does not matter.
    let exempt = Some("sandbox = \"off\"").filter(|_| load.sandbox == SandboxMode::Off);
    let confined = confine(load.sandbox, exempt, ProcessKind::TextHost, &files);
    confined.map(drop).map_err(|error| LoadFailure::new(WorkerExit::BadSpec, &error))
}

fn text_of(load: &TextLoad) -> Result<Text, LoadFailure> {
    model_boss_engine::text::keep_to_one_thread();
    let drafted = load.draft.as_ref().map(|path| vocabulary_of_draft(path, load.limits)).transpose()?;
    let source = &load.source;
    let loaded = on_a_stack(load.limits, move || source.load());
    let loaded = loaded.map_err(|error| LoadFailure::new(WorkerExit::OutOfMemory, &error))?;
    let text = loaded.map_err(|error| unreadable(&error))?;
    if let Some(other) = drafted
        && let Some(why) = text.vocabulary.differs_from(&other)
    {
        let message = format!("the draft model's vocabulary is another one: {why}");
        return Err(LoadFailure::message(WorkerExit::BadModel, message));
    }
    Ok(text)
}

fn unreadable(error: &TextError) -> LoadFailure {
    let exit = if is_read_failure(error) { WorkerExit::ReadFailed } else { WorkerExit::BadModel };
    LoadFailure::new(exit, error)
}

/// The vocabulary in the files of a draft model.
fn vocabulary_of_draft(path: &Path, limits: TextLimits) -> Result<Vocabulary, LoadFailure> {
    let source = TextSource::Model { path: path.to_owned(), part: TextPart::Whole, template: None };
    let loaded = on_a_stack(limits, move || source.load().map(|text| text.vocabulary));
    let loaded = loaded.map_err(|error| LoadFailure::new(WorkerExit::OutOfMemory, &error))?;
    loaded.map_err(|error| unreadable(&error).about("the draft model"))
}

/// Runs something on a thread whose stack is as large as the limits say.
fn on_a_stack<T: Send>(limits: TextLimits, run: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let size = usize::try_from(limits.stack.0).unwrap_or(usize::MAX);
        let thread = thread::Builder::new().name("text".to_owned()).stack_size(size).spawn_scoped(scope, run)?;
        thread.join().map_err(|_| io::Error::other("it failed in a way that was not foreseen"))
    })
}

/// A renderer's life.
fn render(stream: UnixStream, text: &Text, limits: TextLimits, data: &DataInUse) -> io::Result<()> {
    let allowed = limits.stack.0.saturating_add(limits.memory.0);
    limit(Resource::RLIMIT_DATA, data.bytes().saturating_add(allowed))?;
    // The host's own stream of orders is not for this process.
    close_other_than(&stream, 0..MOST_DESCRIPTORS);
    let mut watch = HostLimits { time: limits.time, begun_with: resident()? };
    on_a_stack(limits, || renderer::serve(stream, text, &mut watch))?
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
