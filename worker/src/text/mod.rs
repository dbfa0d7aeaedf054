//! Requests to prompts. A model's chat template and tokenizer are programs that come with its files, so they run in
//! processes of their own. A *text host* loads them. *Renderers* forked from it answer one question at a time, within
//! limits of time, memory and stack. Answers are plain data: tokens, text, and a table of the tokens' bytes. A *text
//! launcher* forks the host, and another one if it is gone.
//!
//! A thread of the worker owns the host; requests borrow renderers. The question that goes over a limit ends its
//! renderer and fails; one whose renderer was ended from outside is asked again.

mod forks;
mod frame;
mod host;
mod launcher;
mod limits;
mod message;
mod order;
mod owner;
mod process;
mod question;
mod renderer;
mod side;
mod text_host;
#[cfg(test)]
mod threads;

pub(crate) use launcher::{COMMAND as LAUNCHER_COMMAND, run as run_launcher};
pub(crate) use message::{AddSpecials, ImageTexts, RoleFacts, TextFacts, TextLoad, TextPart, TextSource, ToolFacts};
pub(crate) use process::start_launcher;
pub(crate) use question::{
    ChatQuestion, ChatTokens, EncodeQuestion, GrammarQuestion, PairQuestion, RenderQuestion, TextFailure,
};
pub(crate) use side::{TextSide, start};
pub(crate) use text_host::StartHost;
#[cfg(test)]
pub(crate) use threads::start_threads;
