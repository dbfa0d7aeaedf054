//! The thread that owns the text host: starts it, has renderers opened and ended, starts it again when it is gone.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};

use model_boss_engine::text::Vocabulary;
use model_boss_protocol::WorkerExit;
use tokio::sync::oneshot;
use tracing::warn;

use super::message::{TextFacts, TextLoad};
use super::order::RendererEnd;
use super::question::{TRIES, TextFailure};
use super::text_host::{OpenedRenderer, StartHost, TextHost};
use crate::failure::LoadFailure;

/// A request to the thread that owns the host.
pub(super) enum HostCommand {
    Open {
        reply: oneshot::Sender<Result<Renderer, TextFailure>>,
    },
    /// Ends a renderer of this host, so that its number is never mistaken for one of a later host.
    End {
        host: u64,
        pid: i32,
        reply: Option<oneshot::Sender<RendererEnd>>,
    },
}

/// A renderer process. Dropping this value does not end it: the host that forked it does.
#[derive(Debug)]
pub(super) struct Renderer {
    pub(super) host: u64,
    pub(super) pid: i32,
    pub(super) stream: tokio::net::UnixStream,
    pub(super) words: Option<UnixStream>,
}

/// The thread's state.
pub(super) struct HostOwner {
    pub(super) start: StartHost,
    pub(super) load: TextLoad,
    pub(super) host: Option<Box<dyn TextHost>>,
    /// The number of this host, which counts up.
    pub(super) number: u64,
    /// The vocabulary that requests are answered with.
    pub(super) known: Option<Arc<Vocabulary>>,
    /// The reason why no host can be started any more.
    pub(super) lost: Option<LoadFailure>,
}

impl HostOwner {
    /// Starts a host and has it load.
    pub(super) fn begin(&mut self) -> Result<(TextFacts, Vocabulary), LoadFailure> {
        let failed = |exit, error| {
            let message = format!("the process for the chat template and the tokenizer cannot be started: {error}");
            LoadFailure::message(exit, message)
        };
        let started = (self.start)().map_err(|error| {
            let failure = failed(WorkerExit::DeviceLost, error);
            self.lost = Some(failure.clone());
            failure
        })?;
        let mut host = started.map_err(|error| failed(WorkerExit::OutOfMemory, error))?;
        let loaded = host.load(&self.load)?;
        self.host = Some(host);
        self.number += 1;
        Ok(loaded)
    }

    /// Serves until nothing is asked any more. An error means that no host can be started any more.
    pub(super) fn serve(&mut self, inbox: &mpsc::Receiver<HostCommand>) -> Result<(), LoadFailure> {
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
                        // The sender may have stopped waiting.
                        let _ = reply.send(ended);
                    }
                }
            }
            if let Some(lost) = self.lost.take() {
                return Err(lost);
            }
        }
        Ok(())
    }

    /// A renderer, of a new host where the last one is gone.
    pub(super) fn open(&mut self) -> Result<Renderer, TextFailure> {
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

    fn renderer(&self, opened: OpenedRenderer) -> Result<Renderer, TextFailure> {
        let OpenedRenderer { pid, stream, words } = opened;
        let stream = stream.set_nonblocking(true).and_then(|()| tokio::net::UnixStream::from_std(stream));
        let stream = stream.map_err(|error| TextFailure::NoRoom(error.to_string()))?;
        Ok(Renderer { host: self.number, pid, stream, words })
    }

    fn end(&mut self, host: u64, pid: i32) -> RendererEnd {
        if host != self.number {
            return RendererEnd::Unknown;
        }
        let Some(owned) = &mut self.host else { return RendererEnd::Unknown };
        owned.end(pid).unwrap_or_else(|_| {
            self.host = None;
            RendererEnd::Unknown
        })
    }
}
