//! Requests to prompts. A model's chat template and tokenizer are programs that come with its files, so they run in
//! processes of their own: a *text host* loads them, and *renderers* forked from it answer one question at a time,
//! within limits of time, memory and stack. What comes back is plain: tokens, text, and a table of the tokens' bytes.
//!
//! A thread of the worker owns the host; requests borrow renderers. The question that goes over a limit ends its
//! renderer and fails; one whose renderer was ended from outside is asked again.

mod frame;
mod host;
mod message;
mod order;
mod process;
mod renderer;
#[cfg(test)]
mod threads;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use model_boss_engine::text::{Conversation, Vocabulary};
use model_boss_protocol::{ByteCount, TextLimits};
use tokio::io::AsyncWriteExt;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tracing::warn;

pub(crate) use host::{COMMAND as HOST_COMMAND, run as run_host};
pub(crate) use message::{AddSpecials, TextFacts};
#[cfg(test)]
pub(crate) use threads::start_threads;

use frame::{Frame, LARGEST_ANSWER, frame};
use message::{Answer, Load, Question, Reply};
use order::Ended;
use process::{HostProcess, last_words};

use crate::process::LoadFailure;

/// A question whose renderer is ended from outside so often is given up.
const TRIES: usize = 3;

/// Loads a model's text side and hands out renderers.
pub(crate) trait TextHost: Send {
    /// Loads. Called once, first.
    fn load(&mut self, load: &Load) -> Result<(TextFacts, Vocabulary), LoadFailure>;

    /// A new renderer. The outer error means that the host is gone, the inner one that the system has no room.
    fn open(&mut self) -> io::Result<io::Result<Opened>>;

    /// Ends a renderer and says how it ended, which it may have done by itself.
    fn end(&mut self, pid: i32) -> io::Result<Ended>;
}

/// Starts a text host.
pub(crate) type StartHost = Box<dyn FnMut() -> io::Result<Box<dyn TextHost>> + Send>;

/// Starts the text host that a worker has: a process.
pub(crate) fn start_process() -> StartHost {
    Box::new(|| Ok(Box::new(HostProcess::start()?)))
}

/// The worker's ends of a new renderer's streams.
pub(crate) struct Opened {
    pid: i32,
    stream: UnixStream,
    /// Its standard error, if it has one of its own.
    words: Option<UnixStream>,
}

/// A model's text side, as requests use it.
#[derive(Debug)]
pub(crate) struct TextSide {
    pub(crate) vocabulary: Arc<Vocabulary>,
    pub(crate) facts: TextFacts,
    limits: TextLimits,
    commands: mpsc::Sender<HostCommand>,
    idle: Mutex<Vec<Renderer>>,
    places: Semaphore,
}

/// The tokens of a conversation.
#[derive(Debug)]
pub(crate) struct ChatTokens {
    pub(crate) tokens: Vec<u32>,
    /// No template made the prompt, so nothing but a next turn's first word ends the answer.
    pub(crate) transcript: bool,
}

/// No prompt came of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TextFailure {
    /// The request is at fault.
    #[error("{0}")]
    Refused(String),
    /// The prompt is longer than was asked for.
    #[error("the prompt has {tokens} tokens")]
    TooLong { tokens: usize },
    /// A limit was reached.
    #[error("{0}")]
    Limit(String),
    /// There is no process to ask.
    #[error("no process can be started for the chat template and the tokenizer: {0}")]
    NoRoom(String),
    /// Something outside ends every renderer.
    #[error("the process that works on the chat template and the tokenizer was ended from outside {TRIES} times")]
    Ended,
}

/// A question as bytes. Making them takes time in proportion to the request.
#[derive(Debug)]
pub(crate) struct ChatQuestion(Vec<u8>);

/// A question for the text of a prompt.
#[derive(Debug)]
pub(crate) struct RenderQuestion(Vec<u8>);

/// A question for the tokens of texts.
#[derive(Debug)]
pub(crate) struct EncodeQuestion(Vec<u8>);

impl ChatQuestion {
    /// For the tokens of a conversation, of which there may be so many.
    pub(crate) fn new(conversation: Conversation, most_tokens: usize) -> Result<Self, TextFailure> {
        framed(&Question::Chat { conversation, most_tokens }).map(Self)
    }
}

impl RenderQuestion {
    pub(crate) fn new(conversation: Conversation) -> Result<Self, TextFailure> {
        framed(&Question::Render { conversation }).map(Self)
    }
}

impl EncodeQuestion {
    /// Each text by itself, and none may have more than so many tokens.
    pub(crate) fn new(
        texts: Vec<String>,
        specials: AddSpecials,
        most_tokens: Option<usize>,
    ) -> Result<Self, TextFailure> {
        framed(&Question::Encode { texts, specials, most_tokens }).map(Self)
    }
}

fn framed(question: &Question) -> Result<Vec<u8>, TextFailure> {
    frame(question, &[]).map_err(|error| TextFailure::Refused(format!("the request cannot be passed on: {error}")))
}

/// What the thread that owns the host is asked for.
enum HostCommand {
    Open {
        reply: oneshot::Sender<Result<Renderer, TextFailure>>,
    },
    /// Of this host, so that a number is never mistaken for one of a later host.
    End {
        host: u64,
        pid: i32,
        reply: Option<oneshot::Sender<Ended>>,
    },
}

/// One renderer. Dropping it ends nothing: [`Lent`] does.
#[derive(Debug)]
struct Renderer {
    host: u64,
    pid: i32,
    stream: tokio::net::UnixStream,
    words: Option<UnixStream>,
}

/// Loads the text side and starts the thread that owns its host. `loaded` hears how loading ended. The runtime watches
/// the streams to the renderers.
pub(crate) fn start(
    start: StartHost,
    runtime: Handle,
    (source, template): (PathBuf, Option<String>),
    limits: TextLimits,
    loaded: impl FnOnce(Result<TextSide, LoadFailure>) + Send + 'static,
) -> io::Result<()> {
    let load = Load { source, template, limits };
    let body = move || {
        let _runtime = runtime.enter();
        let (commands, inbox) = mpsc::channel();
        let mut owner = Owner { start, load, host: None, number: 0, known: None };
        match owner.begin() {
            Ok((facts, vocabulary)) => {
                let vocabulary = Arc::new(vocabulary);
                owner.known = Some(Arc::clone(&vocabulary));
                let places = Semaphore::new(limits.processes.clamp(1, 1024) as usize);
                // The first request finds one.
                let idle = Mutex::new(owner.open().into_iter().collect());
                loaded(Ok(TextSide { vocabulary, facts, limits, commands, idle, places }));
                owner.serve(&inbox);
            }
            Err(failure) => loaded(Err(failure)),
        }
    };
    thread::Builder::new().name("text".to_owned()).spawn(body).map(drop)
}

/// The thread's state.
struct Owner {
    start: StartHost,
    load: Load,
    host: Option<Box<dyn TextHost>>,
    /// Which host this is.
    number: u64,
    /// The vocabulary that requests are answered with.
    known: Option<Arc<Vocabulary>>,
}

impl Owner {
    /// Starts a host and has it load.
    fn begin(&mut self) -> Result<(TextFacts, Vocabulary), LoadFailure> {
        let exit = model_boss_protocol::WorkerExit::OutOfMemory;
        let mut host = (self.start)().map_err(|error| {
            LoadFailure::message(
                exit,
                format!("the process for the chat template and the tokenizer cannot be started: {error}"),
            )
        })?;
        let loaded = host.load(&self.load)?;
        self.host = Some(host);
        self.number += 1;
        Ok(loaded)
    }

    fn serve(&mut self, inbox: &mpsc::Receiver<HostCommand>) {
        while let Ok(command) = inbox.recv() {
            match command {
                HostCommand::Open { reply } => {
                    // A request that has gone meanwhile needs none.
                    if !reply.is_closed()
                        && let Err(Ok(unwanted)) = reply.send(self.open())
                    {
                        self.end(unwanted.host, unwanted.pid);
                    }
                }
                HostCommand::End { host, pid, reply } => {
                    let ended = self.end(host, pid);
                    if let Some(reply) = reply {
                        // Nobody has to want to know.
                        let _ = reply.send(ended);
                    }
                }
            }
        }
    }

    /// A renderer, of a new host where the last one is gone.
    fn open(&mut self) -> Result<Renderer, TextFailure> {
        for _ in 0..TRIES {
            let Some(host) = &mut self.host else {
                self.begin_again()?;
                continue;
            };
            match host.open() {
                Ok(Ok(opened)) => return self.renderer(opened),
                Ok(Err(error)) => return Err(TextFailure::NoRoom(error.to_string())),
                Err(error) => {
                    warn!(%error, "the process that holds the chat template is gone; it is started again");
                    self.host = None;
                }
            }
        }
        Err(TextFailure::Ended)
    }

    fn begin_again(&mut self) -> Result<(), TextFailure> {
        let (_, vocabulary) = self.begin().map_err(|failure| TextFailure::NoRoom(failure.to_string()))?;
        if self.known.as_deref() == Some(&vocabulary) {
            return Ok(());
        }
        self.host = None;
        Err(TextFailure::NoRoom("the model's files have changed since it was loaded; load it again".to_owned()))
    }

    fn renderer(&self, opened: Opened) -> Result<Renderer, TextFailure> {
        let Opened { pid, stream, words } = opened;
        let stream = stream.set_nonblocking(true).and_then(|()| tokio::net::UnixStream::from_std(stream));
        let stream = stream.map_err(|error| TextFailure::NoRoom(error.to_string()))?;
        Ok(Renderer { host: self.number, pid, stream, words })
    }

    fn end(&mut self, host: u64, pid: i32) -> Ended {
        if host != self.number {
            return Ended::Unknown;
        }
        let Some(owned) = &mut self.host else { return Ended::Unknown };
        owned.end(pid).unwrap_or_else(|_| {
            self.host = None;
            Ended::Unknown
        })
    }
}

impl TextSide {
    /// The tokens of a conversation.
    pub(crate) async fn chat(&self, asked: ChatQuestion) -> Result<ChatTokens, TextFailure> {
        let answer = self.ask(&asked.0).await?;
        let (mut lists, transcript) = answer.tokens()?;
        Ok(ChatTokens { tokens: lists.pop().unwrap_or_default(), transcript })
    }

    /// The text that a conversation's prompt is.
    pub(crate) async fn render(&self, asked: RenderQuestion) -> Result<String, TextFailure> {
        let answer = self.ask(&asked.0).await?;
        String::from_utf8(answer.tail().to_vec()).map_err(|_| garbled())
    }

    /// The tokens of each text.
    pub(crate) async fn encode(&self, asked: EncodeQuestion) -> Result<Vec<Vec<u32>>, TextFailure> {
        let answer = self.ask(&asked.0).await?;
        Ok(answer.tokens()?.0)
    }

    /// Asks a renderer. Dropping the future ends the renderer that works on the question.
    async fn ask(&self, question: &[u8]) -> Result<Answered, TextFailure> {
        // The semaphore is never closed.
        let Ok(_place) = self.places.acquire().await else { return Err(TextFailure::Ended) };
        for _ in 0..TRIES {
            let mut lent = Lent { side: self, renderer: Some(self.renderer().await?) };
            match tokio::time::timeout(self.limits.time, lent.exchange(question)).await {
                Ok(Ok(answered)) => {
                    if !answered.reply.worn {
                        lent.give_back();
                    }
                    return answered.checked();
                }
                Ok(Err(_)) => match lent.end().await {
                    (Ended::Signal(nix::libc::SIGABRT | nix::libc::SIGSEGV | nix::libc::SIGBUS), words) => {
                        return Err(self.over(&words));
                    }
                    (Ended::Signal(nix::libc::SIGALRM), _) => return Err(self.late()),
                    // A renderer that was idle may have been ended long ago.
                    _ => {}
                },
                Err(_elapsed) => return Err(self.late()),
            }
        }
        Err(TextFailure::Ended)
    }

    async fn renderer(&self) -> Result<Renderer, TextFailure> {
        if let Some(renderer) = self.idle().pop() {
            return Ok(renderer);
        }
        let (reply, renderer) = oneshot::channel();
        let gone = |_| TextFailure::NoRoom("the thread that starts it has ended".to_owned());
        self.commands.send(HostCommand::Open { reply }).map_err(|_| gone(()))?;
        renderer.await.map_err(|_| gone(()))?
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Renderer>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn late(&self) -> TextFailure {
        let seconds = self.limits.time.as_secs_f64();
        TextFailure::Limit(format!(
            "the model's chat template or tokenizer took longer than {seconds} s on this request; shorten the request, or \
             let the operator raise 'text.time'"
        ))
    }

    fn over(&self, words: &str) -> TextFailure {
        let (memory, stack): (ByteCount, ByteCount) = (self.limits.memory, self.limits.stack);
        TextFailure::Limit(format!(
            "the model's chat template or tokenizer needs more than {memory} of memory or {stack} of stack on this \
             request ({words}); shorten the request, or let the operator raise 'text.memory' or 'text.stack'"
        ))
    }
}

/// What a renderer answered.
struct Answered {
    reply: Reply,
    frame: Frame,
}

impl Answered {
    fn checked(self) -> Result<Self, TextFailure> {
        match self.reply.answer {
            Answer::Refused(message) => Err(TextFailure::Refused(message)),
            Answer::Limit(what) => Err(TextFailure::Limit(format!(
                "the model's chat template or tokenizer {what} on this request; shorten the request"
            ))),
            Answer::TooLong { tokens } => Err(TextFailure::TooLong { tokens }),
            Answer::Tokens { .. } | Answer::Text => Ok(self),
        }
    }

    fn tail(&self) -> &[u8] {
        self.frame.tail()
    }

    fn tokens(&self) -> Result<(Vec<Vec<u32>>, bool), TextFailure> {
        let Answer::Tokens { lengths, transcript } = &self.reply.answer else { return Err(garbled()) };
        let mut rest = self.frame.tail();
        let mut lists = Vec::with_capacity(lengths.len());
        for length in lengths {
            let (list, behind) =
                length.checked_mul(4).and_then(|bytes| rest.split_at_checked(bytes)).ok_or_else(garbled)?;
            lists.push(list.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect());
            rest = behind;
        }
        Ok((lists, *transcript))
    }
}

fn garbled() -> TextFailure {
    TextFailure::Refused("the chat template's answer cannot be read".to_owned())
}

/// A renderer that works on a question. Unless given back it is ended.
struct Lent<'a> {
    side: &'a TextSide,
    renderer: Option<Renderer>,
}

impl Lent<'_> {
    async fn exchange(&mut self, question: &[u8]) -> io::Result<Answered> {
        let Some(renderer) = &mut self.renderer else { return Err(io::ErrorKind::NotConnected.into()) };
        renderer.stream.write_all(question).await?;
        let frame = Frame::receive(&mut renderer.stream, LARGEST_ANSWER).await?;
        Ok(Answered { reply: frame.head()?, frame })
    }

    fn give_back(mut self) {
        if let Some(renderer) = self.renderer.take() {
            self.side.idle().push(renderer);
        }
    }

    /// Ends it and says how it ended, with its last words.
    async fn end(mut self) -> (Ended, String) {
        let Some(renderer) = self.renderer.take() else { return (Ended::Unknown, String::new()) };
        let (reply, ended) = oneshot::channel();
        let command = HostCommand::End { host: renderer.host, pid: renderer.pid, reply: Some(reply) };
        if self.side.commands.send(command).is_err() {
            return (Ended::Unknown, String::new());
        }
        let ended = ended.await.unwrap_or(Ended::Unknown);
        (ended, renderer.words.as_ref().map(last_words).unwrap_or_default())
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(renderer) = self.renderer.take() {
            // Without that thread the host has ended, and its renderers with it.
            let _ = self.side.commands.send(HostCommand::End { host: renderer.host, pid: renderer.pid, reply: None });
        }
    }
}
