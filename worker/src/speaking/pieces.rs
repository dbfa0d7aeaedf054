//! Samples on their way from where they are made to the request that sends them on.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::sync::{Notify, mpsc};

/// Samples that wait to be sent: further ones are not made before there is room.
const MOST_WAITING: usize = 1 << 20;

/// A piece of speech.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SpeechPiece {
    /// Samples between -1 and 1.
    Sound(Vec<f32>),
    /// The end.
    Done(SpokenUsage),
    /// The end before its time.
    Failed(SpeechFailure),
}

/// The cost of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpokenUsage {
    /// Symbols of the text.
    pub(crate) symbols: usize,
    /// Frames of the sound.
    pub(crate) frames: usize,
}

/// Why speech ended before its time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SpeechFailure {
    /// There is too little memory.
    #[error("there is no memory for this: {0}")]
    OutOfMemory(String),
    /// The model or the program failed.
    #[error("the text could not be spoken: {0}")]
    Failed(String),
}

/// The count of samples that wait.
#[derive(Debug, Default)]
struct UnsentSamples {
    samples: AtomicUsize,
    room: Notify,
}

/// The end that makes samples.
#[derive(Debug)]
pub(crate) struct PieceSender {
    pieces: mpsc::UnboundedSender<SpeechPiece>,
    waiting: Arc<UnsentSamples>,
}

/// The end that sends them on. When it is dropped, nobody listens any more.
pub(crate) struct PieceReader {
    pieces: mpsc::UnboundedReceiver<SpeechPiece>,
    waiting: Arc<UnsentSamples>,
    /// Tells the engine of room and of the end.
    tell: Option<TellEngine>,
}

/// Wakes the engine. One that has orders in its inbox is awake.
pub(crate) type TellEngine = Box<dyn Fn() + Send>;

/// Both ends of a request's speech. The engine is told when there is room again.
pub(crate) fn pieces(tell: Option<TellEngine>) -> (PieceSender, PieceReader) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let waiting = Arc::new(UnsentSamples::default());
    let reader = PieceReader { pieces: receiver, waiting: Arc::clone(&waiting), tell };
    (PieceSender { pieces: sender, waiting }, reader)
}

impl PieceSender {
    /// Sends a piece; nothing happens if nobody listens.
    pub(crate) fn send(&self, piece: SpeechPiece) {
        if let SpeechPiece::Sound(samples) = &piece {
            self.waiting.samples.fetch_add(samples.len(), Ordering::Relaxed);
        }
        let _ = self.pieces.send(piece);
    }

    /// Whether nobody listens any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.pieces.is_closed()
    }

    /// Waits until nobody listens any more.
    pub(crate) async fn closed(&self) {
        self.pieces.closed().await;
    }

    /// Whether there is room for further samples.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.samples.load(Ordering::Relaxed) < MOST_WAITING
    }

    /// Waits for room.
    pub(crate) async fn room(&self) {
        while !self.has_room() && !self.is_closed() {
            let notified = self.waiting.room.notified();
            if !self.has_room() {
                tokio::select! {
                    () = notified => {}
                    () = self.closed() => {}
                }
            }
        }
    }
}

impl PieceReader {
    /// The next piece; `None` if the end that makes them is gone.
    pub(crate) async fn next(&mut self) -> Option<SpeechPiece> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The same as a step of a body.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<SpeechPiece>> {
        let Some(piece) = ready!(self.pieces.poll_recv(cx)) else { return Poll::Ready(None) };
        if let SpeechPiece::Sound(samples) = &piece {
            let before = self.waiting.samples.fetch_sub(samples.len(), Ordering::Relaxed);
            if before >= MOST_WAITING && before - samples.len() < MOST_WAITING {
                self.waiting.room.notify_one();
                self.tell();
            }
        }
        Poll::Ready(Some(piece))
    }

    fn tell(&self) {
        if let Some(tell) = &self.tell {
            tell();
        }
    }
}

impl Drop for PieceReader {
    fn drop(&mut self) {
        self.pieces.close();
        self.tell();
    }
}
