//! A model's text side for requests: a question goes to a renderer, and a renderer that exceeds a limit is ended.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use model_boss_engine::text::Vocabulary;
use model_boss_protocol::{ByteCount, TextLimits};
use tokio::io::AsyncWriteExt;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

use super::frame::{Frame, LARGEST_ANSWER};
use super::message::{RendererReply, TextAnswer, TextFacts, TextLoad};
use super::order::RendererEnd;
use super::owner::{HostCommand, HostOwner, Renderer};
use super::process::last_words;
use super::question::{
    ChatQuestion, ChatTokens, EncodeQuestion, GrammarQuestion, PairQuestion, RenderQuestion, TRIES, TextFailure,
};
use super::text_host::StartHost;
use crate::failure::LoadFailure;

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

/// Loads the text side and starts the thread that owns its host. `loaded` gets the result of loading. `lost` is called
/// if no host can be started any more. The runtime watches the streams to the renderers.
pub(crate) fn start(
    start: StartHost,
    runtime: Handle,
    load: TextLoad,
    loaded: impl FnOnce(Result<TextSide, LoadFailure>) + Send + 'static,
    lost: impl FnOnce(LoadFailure) + Send + 'static,
) -> io::Result<()> {
    let limits = load.limits;
    let body = move || {
        let _runtime = runtime.enter();
        let (commands, inbox) = mpsc::channel();
        let mut owner = HostOwner { start, load, host: None, number: 0, known: None, lost: None };
        match owner.begin() {
            Ok((facts, vocabulary)) => {
                let vocabulary = Arc::new(vocabulary);
                owner.known = Some(Arc::clone(&vocabulary));
                let places = Semaphore::new(limits.processes.clamp(1, 1024) as usize);
                // The first request finds one.
                let idle = Mutex::new(owner.open().into_iter().collect());
                loaded(Ok(TextSide { vocabulary, facts, limits, commands, idle, places }));
                if let Err(failure) = owner.serve(&inbox) {
                    lost(failure);
                }
            }
            Err(failure) => loaded(Err(failure)),
        }
    };
    thread::Builder::new().name("text".to_owned()).spawn(body).map(drop)
}

impl TextSide {
    /// The limits of one question.
    pub(crate) fn limits(&self) -> TextLimits {
        self.limits
    }

    /// The tokens of a conversation.
    pub(crate) async fn chat(&self, asked: ChatQuestion) -> Result<ChatTokens, TextFailure> {
        let answer = self.ask(QuestionKind::Text, &asked.0).await?;
        let (mut lists, transcript) = answer.tokens()?;
        Ok(ChatTokens { tokens: lists.pop().unwrap_or_default(), transcript })
    }

    /// The text that a conversation's prompt is.
    pub(crate) async fn render(&self, asked: RenderQuestion) -> Result<String, TextFailure> {
        let answer = self.ask(QuestionKind::Text, &asked.0).await?;
        String::from_utf8(answer.tail().to_vec()).map_err(|_| garbled())
    }

    /// The tokens of each text.
    pub(crate) async fn encode(&self, asked: EncodeQuestion) -> Result<Vec<Vec<u32>>, TextFailure> {
        let answer = self.ask(QuestionKind::Text, &asked.0).await?;
        Ok(answer.tokens()?.0)
    }

    /// The tokens of pairs of texts as the model joins them, with the first token of each second text.
    pub(crate) async fn encode_pairs(&self, asked: PairQuestion) -> Result<Vec<(Vec<u32>, usize)>, TextFailure> {
        let answer = self.ask(QuestionKind::Text, &asked.0).await?;
        let TextAnswer::Pairs { lengths, seconds } = &answer.reply.answer else { return Err(garbled()) };
        Ok(answer.lists(lengths)?.into_iter().zip(seconds.iter().copied()).collect())
    }

    /// Whether an answer can be held to a grammar.
    pub(crate) async fn check(&self, asked: GrammarQuestion) -> Result<(), TextFailure> {
        self.ask(QuestionKind::Grammar, &asked.0).await.map(drop)
    }

    /// Asks a renderer. Dropping the future ends the renderer that works on the question.
    async fn ask(&self, subject: QuestionKind, question: &[u8]) -> Result<RendererAnswer, TextFailure> {
        // The semaphore is never closed.
        let Ok(_place) = self.places.acquire().await else { return Err(TextFailure::Ended) };
        for _ in 0..TRIES {
            let mut lent = Lent { side: self, renderer: Some(self.renderer().await?) };
            match tokio::time::timeout(self.limits.time, lent.exchange(question)).await {
                Ok(Ok(answered)) => {
                    if !answered.reply.worn {
                        lent.give_back();
                    }
                    return answered.checked(subject);
                }
                Ok(Err(_)) => match lent.end().await {
                    (RendererEnd::Signal(nix::libc::SIGABRT | nix::libc::SIGSEGV | nix::libc::SIGBUS), words) => {
                        return Err(self.over(subject, &words));
                    }
                    (RendererEnd::Signal(nix::libc::SIGALRM), _) => return Err(self.late(subject)),
                    // A renderer that was idle may have been ended long ago.
                    _ => {}
                },
                Err(_elapsed) => return Err(self.late(subject)),
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

    fn late(&self, subject: QuestionKind) -> TextFailure {
        let seconds = self.limits.time.as_secs_f64();
        TextFailure::Limit(format!(
            "{subject} took longer than {seconds} s on this request; shorten the request, or let the operator raise \
             'text.time'"
        ))
    }

    fn over(&self, subject: QuestionKind, words: &str) -> TextFailure {
        let (memory, stack): (ByteCount, ByteCount) = (self.limits.memory, self.limits.stack);
        TextFailure::Limit(format!(
            "{subject} needs more than {memory} of memory or {stack} of stack on this request ({words}); shorten the \
             request, or let the operator raise 'text.memory' or 'text.stack'"
        ))
    }
}

/// The work of a question, for messages about its limits.
#[derive(Clone, Copy, Debug)]
enum QuestionKind {
    Text,
    Grammar,
}

impl std::fmt::Display for QuestionKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Text => "the model's chat template or tokenizer",
            Self::Grammar => "the grammar or schema of the answer",
        })
    }
}

/// A renderer's answer.
struct RendererAnswer {
    reply: RendererReply,
    frame: Frame,
}

impl RendererAnswer {
    fn checked(self, subject: QuestionKind) -> Result<Self, TextFailure> {
        match self.reply.answer {
            TextAnswer::Refused(message) => Err(TextFailure::Refused(message)),
            TextAnswer::Limit(what) => {
                Err(TextFailure::Limit(format!("{subject} {what} on this request; shorten the request")))
            }
            TextAnswer::TooLong { tokens } => Err(TextFailure::TooLong { tokens }),
            TextAnswer::Tokens { .. } | TextAnswer::Pairs { .. } | TextAnswer::Text | TextAnswer::Usable => Ok(self),
        }
    }

    fn tail(&self) -> &[u8] {
        self.frame.tail()
    }

    fn tokens(&self) -> Result<(Vec<Vec<u32>>, bool), TextFailure> {
        let TextAnswer::Tokens { lengths, transcript } = &self.reply.answer else { return Err(garbled()) };
        Ok((self.lists(lengths)?, *transcript))
    }

    /// The tail as lists of these lengths.
    fn lists(&self, lengths: &[usize]) -> Result<Vec<Vec<u32>>, TextFailure> {
        let mut rest = self.frame.tail();
        let mut lists = Vec::with_capacity(lengths.len());
        for length in lengths {
            let (list, behind) =
                length.checked_mul(4).and_then(|bytes| rest.split_at_checked(bytes)).ok_or_else(garbled)?;
            lists.push(list.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect());
            rest = behind;
        }
        Ok(lists)
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
    async fn exchange(&mut self, question: &[u8]) -> io::Result<RendererAnswer> {
        let Some(renderer) = &mut self.renderer else { return Err(io::ErrorKind::NotConnected.into()) };
        renderer.stream.write_all(question).await?;
        let frame = Frame::receive(&mut renderer.stream, LARGEST_ANSWER).await?;
        Ok(RendererAnswer { reply: frame.head()?, frame })
    }

    fn give_back(mut self) {
        if let Some(renderer) = self.renderer.take() {
            self.side.idle().push(renderer);
        }
    }

    /// Ends the renderer and returns how it ended, with its last line of output.
    async fn end(mut self) -> (RendererEnd, String) {
        let Some(renderer) = self.renderer.take() else { return (RendererEnd::Unknown, String::new()) };
        let (reply, ended) = oneshot::channel();
        let command = HostCommand::End { host: renderer.host, pid: renderer.pid, reply: Some(reply) };
        if self.side.commands.send(command).is_err() {
            return (RendererEnd::Unknown, String::new());
        }
        let ended = ended.await.unwrap_or(RendererEnd::Unknown);
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
