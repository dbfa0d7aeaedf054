//! A text host from the view of its worker: loads a model's text side and forks renderers.

use std::io;
use std::os::unix::net::UnixStream;

use model_boss_engine::text::Vocabulary;

use super::message::{TextFacts, TextLoad};
use super::order::RendererEnd;
use crate::failure::LoadFailure;

/// Loads a model's text side and forks renderers.
pub(crate) trait TextHost: Send {
    /// Loads. Called once, first.
    fn load(&mut self, load: &TextLoad) -> Result<(TextFacts, Vocabulary), LoadFailure>;

    /// A new renderer. The outer error means that the host is gone, the inner one that the system has no room.
    fn open(&mut self) -> io::Result<io::Result<OpenedRenderer>>;

    /// Ends a renderer and returns how it ended; it may have ended by itself.
    fn end(&mut self, pid: i32) -> io::Result<RendererEnd>;
}

/// Starts a text host. The outer error means that no host can be started any more, the inner one that the system has no
/// room.
pub(crate) type StartHost = Box<dyn FnMut() -> io::Result<io::Result<Box<dyn TextHost>>> + Send>;

/// The worker's ends of a new renderer's streams.
pub(crate) struct OpenedRenderer {
    pub(super) pid: i32,
    pub(super) stream: UnixStream,
    /// Its standard error, if it has one of its own.
    pub(super) words: Option<UnixStream>,
}
