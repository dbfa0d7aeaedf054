//! `model-boss run`: a question and its answer, or a conversation, in the terminal.

use std::io::{self, IsTerminal, Read, Write};
use std::pin::pin;
use std::process::ExitCode;

use clap::Args;
use model_boss_client::{Client, ClientError, StreamLine, error_in, in_path};
use model_boss_host::terminal::{self, Code};
use model_boss_protocol::chain;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::error::CliError;
use super::files;
use super::private::{Private, PrivateModel};

/// The exit code after Ctrl-C, as shells have it.
const STOPPED: u8 = 130;

/// Arguments of `run`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Without a question it reads one from a pipe, or starts a conversation in a terminal.")]
pub(super) struct ChatArgs {
    /// The model's name or alias, or a path: a .gguf file, or the folder of a model.
    #[arg(value_name = "MODEL|PATH")]
    model: String,
    /// The question.
    prompt: Vec<String>,
    /// Instructions to the model before the conversation.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// The longest answer, in tokens.
    #[arg(long, value_name = "N")]
    max_tokens: Option<u64>,
    /// The temperature: 0 always takes the likeliest token; larger values vary more.
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// The seed: the same seed gives the same answer.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How long the model stays loaded afterwards, such as 10m; -1 forever.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    keep_alive: Option<String>,
}

/// Sends one question, or starts a conversation. The coordinator at `client` serves the model, or a private one if none
/// runs and the model is of this machine.
pub(super) fn run(client: &Client, args: ChatArgs, runtime: &Runtime) -> Result<ExitCode, CliError> {
    let mut interrupt = {
        let _entered = runtime.enter();
        signal(SignalKind::interrupt()).map_err(CliError::Runtime)?
    };
    let question = question(&args)?;
    let path = runtime.block_on(files::meant(client, &args.model))?;
    let found = match &path {
        Some(path) => runtime.block_on(files::load(client, path)),
        None => runtime.block_on(files::named(client, &args.model)).map(|()| args.model.clone()),
    };
    let no_coordinator = match found {
        Ok(model) => return talk(client, ChatArgs { model, ..args }, question, runtime, &mut interrupt),
        Err(error @ CliError::Client(ClientError::NoCoordinator(..))) if client.is_on_this_machine() => error,
        Err(error) => return Err(error),
    };
    let model = match &path {
        Some(path) => PrivateModel::Path(path.clone()),
        None => PrivateModel::Manifest(files::folders_with(&args.model).ok_or(no_coordinator)?),
    };
    let mut notice = Notice::new();
    notice.show("starting a coordinator for this chat");
    let started = runtime.block_on(Private::start(&model, interrupt.recv()));
    notice.clear();
    let Some(private) = started? else { return Ok(ExitCode::from(STOPPED)) };
    let loaded = match &path {
        Some(path) => runtime.block_on(files::load(private.client(), path)),
        None => Ok(args.model.clone()),
    };
    let outcome =
        loaded.and_then(|model| talk(private.client(), ChatArgs { model, ..args }, question, runtime, &mut interrupt));
    runtime.block_on(private.end(interrupt.recv()));
    outcome
}

/// The question on the command line or in the pipe; `None` at a terminal.
fn question(args: &ChatArgs) -> Result<Option<String>, CliError> {
    if args.prompt.is_empty() && io::stdin().is_terminal() {
        return Ok(None);
    }
    let mut question = args.prompt.join(" ");
    if args.prompt.is_empty() {
        io::stdin().read_to_string(&mut question).map_err(CliError::Input)?;
    }
    if question.trim().is_empty() { Err(CliError::NoQuestion) } else { Ok(Some(question)) }
}

fn talk(
    client: &Client,
    args: ChatArgs,
    question: Option<String>,
    runtime: &Runtime,
    interrupt: &mut Signal,
) -> Result<ExitCode, CliError> {
    let asker = ChatSession { client, args };
    let Some(question) = question else { return converse(&asker, runtime, interrupt) };
    let mut messages = asker.beginning();
    messages.push(message("user", &question));
    match runtime.block_on(asker.ask(&messages, &mut terminal::out(), interrupt.recv()))?.1 {
        AnswerEnd::ByItself => Ok(ExitCode::SUCCESS),
        AnswerEnd::Stopped => Ok(ExitCode::from(STOPPED)),
    }
}

fn converse(asker: &ChatSession<'_>, runtime: &Runtime, interrupt: &mut Signal) -> Result<ExitCode, CliError> {
    // A wrong name is reported before the first question is typed.
    runtime.block_on(asker.client.get(&format!("/v1/models/{}", in_path(&asker.args.model))))?;
    let mut out = terminal::out();
    let hint = "Ctrl-C stops an answer, /clear starts anew, Ctrl-D or /bye leaves.";
    writeln!(out, "{} at {}. {hint}", asker.args.model, asker.client.url()).map_err(CliError::Output)?;
    let mut editor = DefaultEditor::new()?;
    let mut messages = asker.beginning();
    loop {
        let line = match editor.readline(">>> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                writeln!(out, "{hint}").map_err(CliError::Output)?;
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(ExitCode::SUCCESS),
            Err(error) => return Err(error.into()),
        };
        match line.trim() {
            "" => continue,
            "/bye" | "/exit" | "/quit" => return Ok(ExitCode::SUCCESS),
            "/clear" => {
                messages = asker.beginning();
                continue;
            }
            command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                writeln!(out, "'{command}' is not a command. {hint}").map_err(CliError::Output)?;
                continue;
            }
            _ => {}
        }
        // Without the history, only the arrow keys do less.
        let _ = editor.add_history_entry(line.as_str());
        messages.push(message("user", &line));
        match runtime.block_on(asker.ask(&messages, &mut out, interrupt.recv())) {
            Ok((text, _)) if !text.is_empty() => messages.push(message("assistant", &text)),
            Ok(_) => drop(messages.pop()),
            Err(CliError::Output(error)) => return Err(CliError::Output(error)),
            Err(error) => {
                messages.pop();
                terminal::say(&chain(&error));
            }
        }
    }
}

fn message(role: &str, text: &str) -> Value {
    json!({ "role": role, "content": text })
}

/// The end of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerEnd {
    /// The answer is complete.
    ByItself,
    /// Ctrl-C stopped the answer.
    Stopped,
}

struct ChatSession<'a> {
    client: &'a Client,
    args: ChatArgs,
}

impl ChatSession<'_> {
    /// The first messages of every conversation.
    fn beginning(&self) -> Vec<Value> {
        self.args.system.iter().map(|text| message("system", text)).collect()
    }

    fn body(&self, messages: &[Value]) -> Value {
        let ChatArgs { model, max_tokens, temperature, seed, keep_alive, .. } = &self.args;
        let mut body = json!({ "model": model, "messages": messages, "stream": true });
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                body[name] = value;
            }
        };
        set("max_tokens", max_tokens.map(Value::from));
        set("temperature", temperature.map(Value::from));
        set("seed", seed.map(Value::from));
        // A bare number is seconds, as in the API.
        let time = |text: &String| text.parse::<f64>().map_or_else(|_| Value::from(text.as_str()), Value::from);
        set("keep_alive", keep_alive.as_ref().map(time));
        body
    }

    /// Prints the answer as it arrives; returns its text, whole or up to `stop`.
    async fn ask<T>(
        &self,
        messages: &[Value],
        out: &mut impl Write,
        stop: impl Future<Output = T>,
    ) -> Result<(String, AnswerEnd), CliError> {
        let mut stop = pin!(stop);
        let body = self.body(messages);
        let mut text = String::new();
        let mut notice = Notice::new();
        let mut events = tokio::select! {
            biased;
            _ = &mut stop => return Ok((text, AnswerEnd::Stopped)),
            events = self.client.stream("/v1/chat/completions", &body) => events?,
        };
        let ended = loop {
            let event = tokio::select! {
                biased;
                _ = &mut stop => break AnswerEnd::Stopped,
                event = events.next() => event.inspect_err(|_| notice.clear())?,
            };
            match event {
                Some(StreamLine::Comment(words)) => notice.show(&words),
                Some(StreamLine::Data(data)) if data == "[DONE]" => break AnswerEnd::ByItself,
                Some(StreamLine::Data(data)) => {
                    notice.clear();
                    let chunk: Value = serde_json::from_str(&data).map_err(CliError::Json)?;
                    if let Some(error) = error_in(&chunk) {
                        end_line(&text, out)?;
                        return Err(error.into());
                    }
                    let piece = chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
                    text.push_str(piece);
                    out.write_all(piece.as_bytes()).and_then(|()| out.flush()).map_err(CliError::Output)?;
                }
                None => {
                    notice.clear();
                    end_line(&text, out)?;
                    return Err(CliError::CutOff);
                }
            }
        };
        notice.clear();
        end_line(&text, out)?;
        Ok((text, ended))
    }
}

fn end_line(text: &str, out: &mut impl Write) -> Result<(), CliError> {
    if text.is_empty() || text.ends_with('\n') { Ok(()) } else { writeln!(out).map_err(CliError::Output) }
}

/// A notice of the coordinator while there is no answer yet: one dim line on standard error, replaced by the next.
struct Notice {
    terminal: bool,
    shown: bool,
}

impl Notice {
    fn new() -> Self {
        Self { terminal: terminal::err_is_terminal(), shown: false }
    }

    fn show(&mut self, words: &str) {
        // A lost notice is no reason to lose the answer.
        let mut err = terminal::err();
        let _ = if self.terminal {
            // The notice stays on one line, even with control characters in it.
            let words = model_boss_protocol::printable(words);
            [Code::ClearLine, Code::Dim]
                .into_iter()
                .try_for_each(|code| err.code(code))
                .and_then(|()| err.write_all(words.as_bytes()))
                .and_then(|()| err.code(Code::Plain))
        } else {
            writeln!(err, "{words}")
        };
        self.shown = true;
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) && self.terminal {
            let _ = terminal::err().code(Code::ClearLine);
        }
    }
}

#[cfg(test)]
mod tests;
