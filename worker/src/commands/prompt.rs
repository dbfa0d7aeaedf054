//! Chat templates and vocabularies by hand: conversations become prompts, texts become ids, and ids become text. The
//! work is done in the text processes, within the limits that requests have.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};
use std::path::PathBuf;

use model_boss_engine::text::{Conversation, NoContent, Specials, TemplateValue};
use model_boss_protocol::WorkerExit;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::failure::LoadFailure;
use crate::terminal::print;
use crate::text::{
    self, AddSpecials, EncodeQuestion, RenderQuestion, TextFailure, TextLoad, TextPart, TextSide, TextSource,
};

/// `render`'s command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Render {
    /// A chat template (*.jinja), a GGUF file, or a folder with a model
    #[arg(value_name = "TEMPLATE.jinja|MODEL")]
    source: PathBuf,
    /// Take a conversation from each line, and write a line {"text": …} or {"error": …} for each
    #[arg(long)]
    jsonl: bool,
}

/// `tokenize`'s command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Tokenize {
    /// A GGUF file, a tokenizer.json, or a folder with a model
    #[arg(value_name = "FILE.gguf|tokenizer.json")]
    source: PathBuf,
    /// Take a JSON string from each line, and write an array of ids or a line {"error": …} for each
    #[arg(long)]
    jsonl: bool,
    /// Add the special tokens that the model wants around a text, such as the one that begins it
    #[arg(long)]
    special: bool,
}

/// `detokenize`'s command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Detokenize {
    /// A GGUF file, a tokenizer.json, or a folder with a model
    #[arg(value_name = "FILE.gguf|tokenizer.json")]
    source: PathBuf,
    /// Take an array of ids from each line, and write a JSON string or a line {"error": …} for each
    #[arg(long)]
    jsonl: bool,
    /// Leave special tokens out
    #[arg(long)]
    hide_special: bool,
}

/// A conversation as a line of input. Every other field is a variable of the template.
#[derive(Deserialize)]
struct RenderLine {
    messages: Vec<TemplateValue>,
    #[serde(default)]
    tools: Option<TemplateValue>,
    #[serde(default = "yes")]
    add_generation_prompt: bool,
    #[serde(flatten)]
    variables: BTreeMap<String, TemplateValue>,
}

fn yes() -> bool {
    true
}

/// Renders the conversations on standard input.
pub(crate) fn render(asked: &Render) -> Result<(), LoadFailure> {
    let path = absolute(&asked.source)?;
    let is_template = path.extension().is_some_and(|ending| ending == "jinja" || ending == "j2");
    let source = if is_template {
        TextSource::Template(path)
    } else {
        TextSource::Model { path, part: TextPart::Whole, template: None }
    };
    let loaded = match LoadedText::load(source) {
        // A template that cannot be used is the answer to each conversation. A file that is not there is none.
        Err(failure) if asked.jsonl && is_template && asked.source.is_file() => {
            each(true, |_| Err(failure.to_string()))?;
            return Err(failure);
        }
        loaded => loaded?,
    };
    each(asked.jsonl, |input| {
        let line: RenderLine = read(input, "a conversation: an object with 'messages'")?;
        let RenderLine { messages, tools, add_generation_prompt, variables } = line;
        let conversation = Conversation {
            messages,
            tools,
            add_generation_prompt,
            begun: None,
            variables,
            no_content: NoContent::Exact,
        };
        let text = loaded.answer(async |side| side.render(RenderQuestion::new(conversation)?).await)?;
        Ok(if asked.jsonl { json!({ "text": text }).to_string() } else { text })
    })
}

/// Turns the texts on standard input into ids.
pub(crate) fn tokenize(asked: &Tokenize) -> Result<(), LoadFailure> {
    let loaded = LoadedText::load(TextSource::Vocabulary(absolute(&asked.source)?))?;
    let specials = if asked.special { AddSpecials::Yes } else { AddSpecials::No };
    each(asked.jsonl, |input| {
        let text = if asked.jsonl { read(input, "a string")? } else { input.to_owned() };
        let mut ids =
            loaded.answer(async |side| side.encode(EncodeQuestion::new(vec![text], specials, None)?).await)?;
        // Numbers always have a spelling in JSON.
        Ok(serde_json::to_string(&ids.pop().unwrap_or_default()).unwrap_or_default())
    })
}

/// Turns the ids on standard input into text.
pub(crate) fn detokenize(asked: &Detokenize) -> Result<(), LoadFailure> {
    let loaded = LoadedText::load(TextSource::Vocabulary(absolute(&asked.source)?))?;
    let specials = if asked.hide_special { Specials::Hidden } else { Specials::Spelled };
    let vocabulary = &loaded.side.vocabulary;
    each(asked.jsonl, |input| {
        let ids: Vec<u32> = read(input, "an array of ids")?;
        if let Some(unknown) = ids.iter().find(|id| **id as usize >= vocabulary.len()) {
            return Err(format!("the vocabulary has no token {unknown}: it has {} tokens", vocabulary.len()));
        }
        let text = vocabulary.text(&ids, specials);
        Ok(if asked.jsonl { Value::from(text).to_string() } else { text })
    })
}

/// A loaded text side, and the runtime that watches its processes.
struct LoadedText {
    runtime: Runtime,
    side: TextSide,
}

impl LoadedText {
    fn load(source: TextSource) -> Result<Self, LoadFailure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| internal(&error))?;
        let (sender, loading) = std::sync::mpsc::channel();
        let loaded = move |loaded| drop(sender.send(loaded));
        let load = TextLoad::by_hand(source);
        text::start_launcher(&load)
            .and_then(|start| text::start(start, runtime.handle().clone(), load, loaded, drop))
            .map_err(|error| internal(&error))?;
        let side = loading.recv().map_err(|error| internal(&error))??;
        for warning in &side.facts.warnings {
            crate::terminal::say(format_args!("model-boss-worker: {warning}"));
        }
        Ok(Self { runtime, side })
    }

    /// The answer of the text processes, or the reason why there is none.
    fn answer<T>(&self, ask: impl AsyncFnOnce(&TextSide) -> Result<T, TextFailure>) -> Result<T, String> {
        self.runtime.block_on(ask(&self.side)).map_err(|error| error.to_string())
    }
}

/// Prints the output for each line of standard input, or for all of it. A line that has no output gets its error
/// as an object, and the next line follows.
fn each(by_line: bool, mut output: impl FnMut(&str) -> Result<String, String>) -> Result<(), LoadFailure> {
    let unreadable =
        |error: io::Error| LoadFailure::message(WorkerExit::BadSpec, format!("standard input cannot be read: {error}"));
    let mut input = io::stdin().lock();
    if !by_line {
        let mut whole = String::new();
        input.read_to_string(&mut whole).map_err(unreadable)?;
        print(output(&whole).map_err(|message| LoadFailure::message(WorkerExit::BadSpec, message))?);
        return Ok(());
    }
    for line in input.split(b'\n') {
        let line = line.map_err(unreadable)?;
        let line = String::from_utf8_lossy(&line);
        if !line.trim().is_empty() {
            print(output(&line).unwrap_or_else(|message| json!({ "error": message }).to_string()));
        }
    }
    Ok(())
}

fn read<'de, T: Deserialize<'de>>(input: &'de str, wanted: &str) -> Result<T, String> {
    serde_json::from_str(input).map_err(|error| format!("this is not {wanted}: {error}"))
}

fn absolute(path: &std::path::Path) -> Result<PathBuf, LoadFailure> {
    // The text host opens the files by this path.
    std::path::absolute(path).map_err(|error| internal(&error))
}

fn internal(error: &(dyn std::error::Error + 'static)) -> LoadFailure {
    LoadFailure::new(WorkerExit::DeviceLost, error)
}
