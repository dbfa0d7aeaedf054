//! A part of a file as a body. It is read ahead on a thread of its own, because one thread serves all sockets.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

/// The bytes of a piece.
const PIECE: usize = 64 << 10;
/// Pieces that are read before they are sent.
const AHEAD: usize = 2;

/// A part of a file.
pub(crate) struct FileBody {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    left: u64,
}

impl FileBody {
    /// The `length` bytes of the file from `start`. The body ends with an error if the file is shorter.
    pub(crate) fn new(file: File, start: u64, length: u64) -> Self {
        let (sender, pieces) = mpsc::channel(AHEAD);
        spawn_blocking(move || {
            if let Err(error) = read(file, start, length, &sender) {
                // An error means that the reader is gone.
                let _ = sender.blocking_send(Err(error));
            }
        });
        Self { pieces, left: length }
    }
}

fn read(mut file: File, start: u64, length: u64, sender: &mpsc::Sender<io::Result<Bytes>>) -> io::Result<()> {
    file.seek(SeekFrom::Start(start))?;
    let mut left = length;
    while left > 0 {
        let size = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let mut piece = vec![0; size];
        file.read_exact(&mut piece)?;
        left = left.saturating_sub(size as u64);
        if sender.blocking_send(Ok(Bytes::from(piece))).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

impl http_body::Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.pieces.poll_recv(cx).map(|piece| {
            piece.map(|piece| {
                let piece = piece?;
                self.left = self.left.saturating_sub(piece.len() as u64);
                Ok(Frame::data(piece))
            })
        })
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
