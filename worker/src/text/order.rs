//! Orders of a worker to its text host: eight bytes there, eight bytes back, with the streams of a new renderer
//! beside them.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

const OPEN: i32 = 1;
const END: i32 = 2;

/// An order, as the host receives it.
#[derive(Debug)]
pub(super) enum HostOrder {
    /// Fork a renderer for these streams.
    Open(Passed),
    /// End the renderer with this pid.
    End(i32),
}

/// A renderer's ends of its streams.
#[derive(Debug)]
pub(super) struct Passed {
    pub(super) stream: OwnedFd,
    /// Its standard error.
    pub(super) words: OwnedFd,
}

/// The way in which a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RendererEnd {
    Exited(i32),
    Signal(i32),
    Unknown,
}

/// The host's side.
#[derive(Debug)]
pub(super) struct OrderStream(UnixStream);

impl OrderStream {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// The next order; `None` when the worker is gone.
    pub(super) fn next(&mut self) -> io::Result<Option<HostOrder>> {
        let mut bytes = [0; 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut passed = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received =
            rustix::io::retry_on_intr(|| recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut passed, flags))?;
        if received.bytes == 0 {
            return Ok(None);
        }
        self.0.read_exact(&mut bytes[received.bytes..])?;
        let mut fds = passed.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let malformed = || io::Error::from(io::ErrorKind::InvalidData);
        match pair(bytes) {
            (OPEN, _) => {
                let (stream, words) = (fds.next().ok_or_else(malformed)?, fds.next().ok_or_else(malformed)?);
                Ok(Some(HostOrder::Open(Passed { stream, words })))
            }
            (END, pid) => Ok(Some(HostOrder::End(pid))),
            _ => Err(malformed()),
        }
    }

    /// Reports the forked renderer, or the error of the fork.
    pub(super) fn opened(&mut self, pid: io::Result<i32>) -> io::Result<()> {
        let answer = match pid {
            Ok(pid) => (0, pid),
            Err(error) => (1, error.raw_os_error().unwrap_or(0)),
        };
        self.0.write_all(&bytes(answer))
    }

    /// Reports how a renderer ended.
    pub(super) fn ended(&mut self, ended: RendererEnd) -> io::Result<()> {
        self.0.write_all(&bytes(match ended {
            RendererEnd::Exited(code) => (0, code),
            RendererEnd::Signal(signal) => (1, signal),
            RendererEnd::Unknown => (2, 0),
        }))
    }
}

/// Orders a renderer for these streams. The inner error is the system's, which has no room for another process.
pub(super) fn open(host: &mut UnixStream, stream: &OwnedFd, words: &OwnedFd) -> io::Result<io::Result<i32>> {
    let fds = [stream.as_fd(), words.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut passed = SendAncillaryBuffer::new(&mut space);
    if !passed.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let order = bytes((OPEN, 0));
    let sent = rustix::io::retry_on_intr(|| sendmsg(&*host, &[IoSlice::new(&order)], &mut passed, SendFlags::empty()))?;
    host.write_all(&order[sent..])?;
    Ok(match answer(host)? {
        (0, pid) => Ok(pid),
        (_, error) => Err(io::Error::from_raw_os_error(error)),
    })
}

/// Orders the end of a renderer.
pub(super) fn end(host: &mut UnixStream, pid: i32) -> io::Result<RendererEnd> {
    host.write_all(&bytes((END, pid)))?;
    Ok(match answer(host)? {
        (0, code) => RendererEnd::Exited(code),
        (1, signal) => RendererEnd::Signal(signal),
        _ => RendererEnd::Unknown,
    })
}

fn answer(host: &mut UnixStream) -> io::Result<(i32, i32)> {
    let mut bytes = [0; 8];
    host.read_exact(&mut bytes)?;
    Ok(pair(bytes))
}

fn bytes((first, second): (i32, i32)) -> [u8; 8] {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_le_bytes(), second.to_le_bytes());
    [a, b, c, d, e, f, g, h]
}

fn pair([a, b, c, d, e, f, g, h]: [u8; 8]) -> (i32, i32) {
    (i32::from_le_bytes([a, b, c, d]), i32::from_le_bytes([e, f, g, h]))
}
