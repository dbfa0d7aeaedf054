//! The `claude` command line as the connection to a provider (RC-27). One process runs for each request, without tools
//! and in an empty folder. Its environment holds only what it needs. It ends with the request, and with this process.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use model_boss_dialects::anthropic::{CommandAnswer, CommandQuestion, Ended, cloud_error};
use model_boss_dialects::{DialectError, sse};
use model_boss_host::environment::ChildEnvironment;
use model_boss_host::guard::{Guarded, Lifeline};
use model_boss_host::process::Spawner;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdout};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::error::{CloudError, CommandFault};

/// The longest silence of a command: thinking models take minutes.
const SILENCE: Duration = Duration::from_secs(600);
/// The time to exit after the command has reported its end.
const FAREWELL: Duration = Duration::from_secs(2);
/// The bytes at the end of standard error that are kept for an error message.
const LAST_WORDS: usize = 2_048;
/// The size of one read, in bytes.
const READ_AT_ONCE: usize = 16 * 1024;
/// The pieces of an answer that are buffered for a slow client.
const AHEAD: usize = 16;
/// The system prompt of a request that has none: the command's own default makes it a programmer's helper.
const USUAL_SYSTEM: &str = "Answer what you are asked.";
/// The environment variables that the command inherits: paths, proxies, and its own login.
const PASSED_ON: [&str; 24] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "CLAUDE_CONFIG_DIR",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
];

/// Starts the commands.
#[derive(Debug, Default)]
pub(super) struct Commands {
    /// A thread of its own, made for the first command: commands die with the thread that started them.
    spawner: OnceLock<Spawner>,
}

/// A running command. Dropping it ends the command and everything that it started.
pub(super) struct RunningCommand {
    child: Child,
    /// Dropping the lifeline ends everything that the command started.
    _lifeline: Lifeline,
    output: ChildStdout,
    /// The end of standard error.
    words: JoinHandle<String>,
    answer: CommandAnswer,
    /// Events of the Messages API that have not been delivered.
    unread: Vec<u8>,
    /// The bytes of the last read.
    read: BytesMut,
    name: String,
    _folder: TempDir,
}

impl Commands {
    /// Starts a command and waits until its answer begins.
    pub(super) async fn ask(
        &self,
        (name, program): (&str, &Path),
        model: &str,
        key: Option<String>,
        question: CommandQuestion,
    ) -> Result<RunningCommand, CloudError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-:@/[]".contains(c);
        if model.starts_with('-') || !model.chars().all(plain) {
            return Err(CloudError::ModelName(model.to_owned()));
        }
        let failed = |error: io::Error| {
            let fault = CommandFault::NotStarted { program: program.to_owned(), error };
            CloudError::Command { provider: name.to_owned(), fault }
        };
        let folder = tempfile::tempdir().map_err(failed)?;
        let system = folder.path().join("system.txt");
        let words = if question.system.is_empty() { USUAL_SYSTEM } else { &question.system };
        std::fs::write(&system, words).map_err(failed)?;
        // A name without a folder is searched in PATH. Any other path is relative to this process's current folder,
        // which is not the command's.
        let program = if program.components().count() > 1 {
            std::path::absolute(program).map_err(failed)?
        } else {
            program.to_owned()
        };
        let command = command(&program, model, &question, key, (folder.path(), &system)).map_err(failed)?;
        let spawner = match self.spawner.get() {
            Some(spawner) => spawner,
            None => {
                let started = Spawner::start(Handle::current()).map_err(failed)?;
                self.spawner.get_or_init(|| started)
            }
        };
        let (mut child, lifeline) = spawner.spawn_program(command).await.map_err(failed)?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(mut input), Some(output), Some(errors)) = pipes else {
            return Err(failed(io::Error::other("it has no pipes")));
        };
        let words = tokio::spawn(last_words(errors));
        let (answer, unread) = (CommandAnswer::default(), Vec::new());
        let mut running = RunningCommand {
            child,
            _lifeline: lifeline,
            output,
            words,
            answer,
            unread,
            read: BytesMut::new(),
            name: name.to_owned(),
            _folder: folder,
        };
        // The command may answer, or end, before it has read everything.
        let asking = async move {
            _ = input.write_all(question.prompt.as_bytes()).await;
            drop(input);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = asking => {}
            begun = running.begin() => begun?,
        }
        match running.answer.ended() {
            Some(Ended::Badly { message, status }) if running.unread.is_empty() => {
                Err(refusal(message, *status).into())
            }
            _ => Ok(running),
        }
    }
}

fn command(
    program: &Path,
    model: &str,
    question: &CommandQuestion,
    key: Option<String>,
    places: (&Path, &PathBuf),
) -> io::Result<Guarded> {
    let (folder, system) = places;
    let mut guarded = Guarded::new(program, &ChildEnvironment::of_names(&PASSED_ON))?;
    let command = guarded.command();
    command.args(["-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages"]);
    command.args([
        "--model",
        model,
        "--max-turns",
        "1",
        "--tools",
        "",
        "--strict-mcp-config",
        "--no-session-persistence",
    ]);
    command.arg("--system-prompt-file").arg(system);
    command.env("CLAUDE_CODE_MAX_OUTPUT_TOKENS", question.max_tokens.to_string());
    command.env("MAX_THINKING_TOKENS", question.thinking.unwrap_or(0).to_string());
    command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    if let Some(key) = key {
        command.env("ANTHROPIC_API_KEY", key);
    }
    command.current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(guarded)
}

impl RunningCommand {
    /// Waits until a part of the answer, or its end, has arrived.
    async fn begin(&mut self) -> Result<(), CloudError> {
        while !self.answer.has_begun() {
            self.more().await?;
        }
        Ok(())
    }

    /// Waits for the end; returns the answer as one message of the Messages API.
    pub(super) async fn whole(mut self) -> Result<Bytes, CloudError> {
        while self.answer.ended().is_none() {
            self.more().await?;
        }
        match self.answer.ended() {
            Some(Ended::Badly { message, status }) => Err(refusal(message, *status).into()),
            _ => Ok(Bytes::from(self.answer.whole().to_string())),
        }
    }

    /// The answer as a stream of the Messages API. Dropping the receiver ends the command.
    pub(super) fn stream(mut self) -> mpsc::Receiver<Bytes> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        tokio::spawn(async move {
            loop {
                let said = std::mem::take(&mut self.unread);
                if !said.is_empty() && sender.send(Bytes::from(said)).await.is_err() {
                    return;
                }
                if self.answer.ended().is_some() {
                    drop(sender);
                    // The answer is complete, so it does not matter whether the command exits in time or is killed.
                    _ = timeout(FAREWELL, self.child.wait()).await;
                    return;
                }
                tokio::select! {
                    () = sender.closed() => return,
                    more = self.more() => if let Err(error) = more {
                        let mut event = Vec::new();
                        let told = json!({ "type": "api_error", "message": error.to_string() });
                        sse::named(&mut event, "error", &json!({ "type": "error", "error": told }));
                        _ = sender.send(Bytes::from(event)).await;
                        return;
                    },
                }
            }
        });
        receiver
    }

    /// Reads more of the output. The call fails when the command ended without a result, or is silent for too long.
    async fn more(&mut self) -> Result<(), CloudError> {
        self.read.clear();
        self.read.reserve(READ_AT_ONCE);
        let provider = self.name.clone();
        match timeout(SILENCE, self.output.read_buf(&mut self.read)).await {
            Err(_) => Err(CloudError::Command { provider, fault: CommandFault::Silent(SILENCE) }),
            Ok(Ok(1..)) => {
                self.unread.extend(self.answer.push(&self.read));
                Ok(())
            }
            Ok(_) => {
                let status = timeout(FAREWELL, self.child.wait()).await;
                let how =
                    status.ok().and_then(Result::ok).map_or_else(|| "no end".to_owned(), |status| status.to_string());
                let words = timeout(FAREWELL, &mut self.words).await.ok().and_then(Result::ok).unwrap_or_default();
                let fault = CommandFault::NoAnswer { how, words: words.trim().to_owned() };
                let error = CloudError::Command { provider, fault };
                tracing::warn!("{error}");
                Err(error)
            }
        }
    }
}

fn refusal(message: &str, status: u16) -> DialectError {
    let said: Value = json!({ "error": { "message": message } });
    cloud_error(status, said.to_string().as_bytes(), None)
}

async fn last_words(mut errors: impl tokio::io::AsyncRead + Unpin) -> String {
    let (mut kept, mut bytes) = (Vec::new(), [0; 1_024]);
    while let Ok(count @ 1..) = errors.read(&mut bytes).await {
        kept.extend_from_slice(&bytes[..count]);
        let over = kept.len().saturating_sub(LAST_WORDS);
        kept.drain(..over);
    }
    String::from_utf8_lossy(&kept).into_owned()
}
