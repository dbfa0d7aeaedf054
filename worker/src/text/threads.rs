//! A text host for tests: its renderers are threads of the test, so no limit holds but those of time.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use model_boss_engine::text::{Text, Vocabulary};
use model_boss_protocol::WorkerExit;

use super::message::{TextFacts, TextLoad};
use super::order::RendererEnd;
use super::renderer::{self, RendererWatch};
use super::text_host::{OpenedRenderer, StartHost, TextHost};
use crate::failure::LoadFailure;

/// A function that starts a host of threads.
pub(crate) fn start_threads() -> StartHost {
    Box::new(|| Ok(Ok(Box::new(ThreadHost(None)))))
}

struct ThreadHost(Option<Arc<Text>>);

struct Unwatched;

impl RendererWatch for Unwatched {}

impl TextHost for ThreadHost {
    fn load(&mut self, load: &TextLoad) -> Result<(TextFacts, Vocabulary), LoadFailure> {
        let text = load.source.load().map_err(|error| LoadFailure::new(WorkerExit::BadModel, &error))?;
        let facts = TextFacts::of(&text);
        let vocabulary = text.vocabulary.clone();
        self.0 = Some(Arc::new(text));
        Ok((facts, vocabulary))
    }

    fn open(&mut self) -> io::Result<io::Result<OpenedRenderer>> {
        let text = Arc::clone(self.0.as_ref().unwrap());
        let (stream, theirs) = UnixStream::pair()?;
        thread::spawn(move || renderer::serve(theirs, &text, &mut Unwatched));
        Ok(Ok(OpenedRenderer { pid: 0, stream, words: None }))
    }

    fn end(&mut self, _: i32) -> io::Result<RendererEnd> {
        Ok(RendererEnd::Unknown)
    }
}
