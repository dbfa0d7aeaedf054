//! One run of a program that speaks, from the worker's side: text in, samples out.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model_boss_protocol::{SandboxMode, SpeechProgram, SpeechValues};
use tokio::io::AsyncReadExt;
use tokio::sync::Notify;

use super::host;
use super::keeper::find;
use super::order::{self, KeeperStreams, ProgramEnd, ProgramOrder, frame};
use super::streamed_sound::StreamedSound;
use crate::speaking::pieces::{PieceSender, SpeechFailure, SpeechPiece, SpokenUsage};

/// A host that does not carry an order out within this time is taken for dead.
const ORDER: Duration = Duration::from_secs(10);

/// The most bytes of a program's last words.
const WORDS: usize = 400;

/// The most seconds of sound of one request.
const LONGEST_SOUND: u64 = 3_600;

/// Pieces of a second that count as tokens of an answer.
const FRAMES: usize = 50;

/// The longest wait for the last words of a program, and for how it ended.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Starts programs.
#[derive(Clone, Debug)]
pub(crate) struct StartProgram {
    host: Arc<Mutex<UnixStream>>,
    program: Arc<SpeechProgram>,
    source: PathBuf,
    sandbox: SandboxMode,
    limit: Duration,
    /// Notified when the host is gone.
    gone: Arc<Notify>,
}

/// One run that has begun to sound.
pub(crate) struct ProgramRun {
    /// Samples per second.
    pub(crate) rate: u32,
    /// The first samples.
    pub(crate) first: Vec<f32>,
    stream: ProgramStream,
}

/// The streams of a keeper. When they are dropped, it ends its program.
struct ProgramStream {
    orders: tokio::net::UnixStream,
    sound: tokio::net::UnixStream,
    words: tokio::net::UnixStream,
    reader: StreamedSound,
    /// Bytes of the next read.
    buffer: Vec<u8>,
    /// The last words that were read; none when the program has closed their stream.
    said: Vec<u8>,
    speaks: bool,
}

/// The path of a program on PATH, or by its own path.
pub(crate) fn find_program(program: &SpeechProgram) -> Result<PathBuf, String> {
    let name = program.line.first().map_or("", String::as_str);
    find(name).ok_or_else(|| format!("the program '{name}' is not there: install it, or put it on PATH"))
}

/// Starts the host of a worker's programs. It ends with the calling thread, however the worker ends.
pub(crate) fn start_host(program: &SpeechProgram, source: &Path, sandbox: SandboxMode) -> io::Result<StartProgram> {
    let (orders, theirs) = UnixStream::pair()?;
    // The process ends when its stream does, and is reaped with this one.
    drop(
        Command::new(host::program()?)
            .arg(host::COMMAND)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()?,
    );
    orders.set_read_timeout(Some(ORDER))?;
    Ok(StartProgram {
        host: Arc::new(Mutex::new(orders)),
        limit: program.limit().map_err(io::Error::other)?,
        program: Arc::new(program.clone()),
        source: source.to_owned(),
        sandbox,
        gone: Arc::default(),
    })
}

impl StartProgram {
    /// The description of the program.
    pub(crate) fn program(&self) -> &SpeechProgram {
        &self.program
    }

    /// Waits until no program can be started any more.
    pub(crate) fn gone(&self) -> impl Future<Output = ()> + Send + use<> {
        let gone = Arc::clone(&self.gone);
        async move { gone.notified().await }
    }

    /// Runs the program for a text, and waits for its first samples. Dropping the future, or the run, ends the program.
    pub(crate) async fn run(&self, text: String, voice: usize, speed: f32) -> Result<ProgramRun, SpeechFailure> {
        let failed = |why: String| SpeechFailure::Failed(why);
        let voice = self.program.voices.get(voice).ok_or_else(|| failed("there is no such voice".to_owned()))?;
        let path = self.source.to_string_lossy();
        let line = self.program.filled(&SpeechValues { voice, speed, path: &path });
        let order = ProgramOrder {
            line: line.map_err(|error| failed(error.to_string()))?,
            env: self.program.env.clone(),
            text,
            reads: self.program.reads.iter().cloned().chain([self.source.clone()]).collect(),
            sandbox: self.sandbox,
            limit: self.limit,
        };
        let host = Arc::clone(&self.host);
        let started = tokio::task::spawn_blocking(move || keeper(&host, &order)).await;
        let started = started.unwrap_or_else(|error| Err(io::Error::other(error)));
        let lost = |error: io::Error| failed(format!("no program can be started: {error}"));
        let started = started.inspect_err(|_| self.gone.notify_one()).map_err(lost)?;
        let mut stream = started
            .and_then(|streams| {
                ProgramStream::new(streams, StreamedSound::new(self.program.output, self.program.sample_rate))
            })
            .map_err(|error| failed(format!("its program could not be started: {error}")))?;
        loop {
            match stream.next().await? {
                Some(samples) if samples.is_empty() => {}
                Some(first) => match stream.reader_rate() {
                    Some(rate) => return Ok(ProgramRun { rate, first, stream }),
                    None => return Err(failed("its sound has no rate".to_owned())),
                },
                None => return Err(stream.failure().await),
            }
        }
    }
}

/// Orders a keeper, and gives it its work.
/// The outer error means that the host is gone.
fn keeper(host: &Mutex<UnixStream>, order: &ProgramOrder) -> io::Result<io::Result<[UnixStream; 3]>> {
    let (orders, their_orders) = UnixStream::pair()?;
    let (sound, their_sound) = UnixStream::pair()?;
    let (words, their_words) = UnixStream::pair()?;
    let streams = KeeperStreams { orders: their_orders.into(), sound: their_sound.into(), words: their_words.into() };
    let started = order::start(&mut host.lock().unwrap_or_else(PoisonError::into_inner), &streams)?;
    drop(streams);
    orders.set_write_timeout(Some(ORDER))?;
    let work = frame(order)?;
    let given = started.and_then(|()| (&orders).write_all(&work));
    Ok(given.map(|()| [orders, sound, words]))
}

impl ProgramStream {
    fn new(streams: [UnixStream; 3], reader: StreamedSound) -> io::Result<Self> {
        let [orders, sound, words] = streams.map(|stream| {
            stream.set_nonblocking(true)?;
            tokio::net::UnixStream::from_std(stream)
        });
        let buffer = vec![0; 32 << 10];
        Ok(Self { orders: orders?, sound: sound?, words: words?, reader, buffer, said: Vec::new(), speaks: true })
    }

    fn reader_rate(&self) -> Option<u32> {
        self.reader.rate()
    }

    /// The next samples; none at the end.
    async fn next(&mut self) -> Result<Option<Vec<f32>>, SpeechFailure> {
        let mut words = [0; 1024];
        loop {
            // A program whose words nobody reads would wait for ever.
            let read = tokio::select! {
                biased;
                read = self.sound.read(&mut self.buffer) => read.unwrap_or(0),
                said = self.words.read(&mut words), if self.speaks => {
                    self.keep(&words[..said.unwrap_or(0)]);
                    continue;
                }
            };
            if read == 0 {
                return Ok(None);
            }
            return self.reader.push(&self.buffer[..read]).map(Some).map_err(SpeechFailure::Failed);
        }
    }

    /// Keeps the last words of a program.
    fn keep(&mut self, words: &[u8]) {
        self.speaks &= !words.is_empty();
        self.said.extend_from_slice(words);
        let over = self.said.len().saturating_sub(WORDS);
        self.said.drain(..over);
    }

    /// How the program ended, once its sound has.
    async fn end(&mut self) -> Option<ProgramEnd> {
        let read = async {
            let length = self.orders.read_u32_le().await.ok()?;
            let mut json = vec![0; usize::try_from(length).ok().filter(|length| *length <= 4_096)?];
            self.orders.read_exact(&mut json).await.ok()?;
            serde_json::from_slice(&json).ok()
        };
        tokio::time::timeout(LAST_WORDS, read).await.ok().flatten()
    }

    /// The failure of a program that gave no sound, or broke off.
    async fn failure(&mut self) -> SpeechFailure {
        let end = self.end().await;
        let told = match end {
            Some(ProgramEnd::Exited(0)) => "its program wrote no sound".to_owned(),
            Some(ProgramEnd::Exited(code)) => format!("its program ended with code {code}"),
            Some(ProgramEnd::Signal(signal)) => format!("its program was ended by signal {signal}"),
            Some(ProgramEnd::NotStarted(why)) => format!("its program could not be started: {why}"),
            Some(ProgramEnd::Late) => "its program took longer than its 'time_limit'".to_owned(),
            None => "its program is gone".to_owned(),
        };
        let words = self.last_words().await;
        SpeechFailure::Failed(if words.is_empty() { told } else { format!("{told}: {words}") })
    }

    async fn last_words(&mut self) -> String {
        let mut piece = [0; 1024];
        while self.speaks {
            // The program has ended: what it said is there.
            let read = tokio::time::timeout(LAST_WORDS, self.words.read(&mut piece)).await;
            let count = read.ok().and_then(Result::ok).unwrap_or(0);
            self.keep(&piece[..count]);
        }
        String::from_utf8_lossy(&self.said).trim().to_owned()
    }
}

impl ProgramRun {
    /// Passes the samples on until the program has ended, or nobody listens. `symbols` is the length of the text.
    pub(crate) async fn pass_on(mut self, symbols: usize, reply: PieceSender) {
        let mut heard = self.first.len();
        reply.send(SpeechPiece::Sound(std::mem::take(&mut self.first)));
        loop {
            reply.room().await;
            let next = tokio::select! {
                () = reply.closed() => return,
                next = self.stream.next() => next,
            };
            match next {
                Err(failure) => return reply.send(SpeechPiece::Failed(failure)),
                Ok(Some(samples)) => {
                    heard += samples.len();
                    if heard as u64 > LONGEST_SOUND * u64::from(self.rate) {
                        let why = format!("its program speaks for more than {LONGEST_SOUND} s");
                        return reply.send(SpeechPiece::Failed(SpeechFailure::Failed(why)));
                    }
                    reply.send(SpeechPiece::Sound(samples));
                }
                Ok(None) => {
                    return match self.stream.end().await {
                        Some(ProgramEnd::Exited(0)) => {
                            let frames = (heard * FRAMES).div_ceil(self.rate as usize);
                            reply.send(SpeechPiece::Done(SpokenUsage { symbols, frames }));
                        }
                        Some(ProgramEnd::Exited(code)) => {
                            let why = format!("its program ended with code {code} in the middle of its sound");
                            reply.send(SpeechPiece::Failed(SpeechFailure::Failed(why)));
                        }
                        Some(ProgramEnd::Late) => {
                            let why = "its program took longer than its 'time_limit'".to_owned();
                            reply.send(SpeechPiece::Failed(SpeechFailure::Failed(why)));
                        }
                        _ => {
                            let why = "its program was ended in the middle of its sound".to_owned();
                            reply.send(SpeechPiece::Failed(SpeechFailure::Failed(why)));
                        }
                    };
                }
            }
        }
    }
}
