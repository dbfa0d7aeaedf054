//! Messages between a worker, its host and a keeper.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use model_boss_protocol::SandboxMode;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

/// The order to a host, with three streams beside it. The answer is 0, or a number of the system's error.
const START: u8 = 1;

/// The most bytes of a frame: a text and a command line.
const LARGEST_FRAME: usize = 1 << 20;

/// A keeper's streams.
pub(super) struct KeeperStreams {
    /// Its orders; the end of the stream ends it.
    pub(super) orders: OwnedFd,
    /// The program's sound.
    pub(super) sound: OwnedFd,
    /// The program's words.
    pub(super) words: OwnedFd,
}

/// The work of a keeper, its first frame.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ProgramOrder {
    /// The program and its arguments.
    pub(super) line: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    /// The text for the program's standard input.
    pub(super) text: String,
    /// Files and folders that the program may read, beside those of the system.
    pub(super) reads: Vec<PathBuf>,
    pub(super) sandbox: SandboxMode,
    /// The longest time.
    pub(super) limit: Duration,
}

/// How a program ended, a keeper's last frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ProgramEnd {
    /// It exited with this code.
    Exited(i32),
    /// It was ended by this signal.
    Signal(i32),
    /// It was not started.
    NotStarted(String),
    /// It went over its time.
    Late,
}

/// Orders a keeper for these streams. The inner error is the system's.
pub(super) fn start(host: &mut UnixStream, streams: &KeeperStreams) -> io::Result<io::Result<()>> {
    let fds = [streams.orders.as_fd(), streams.sound.as_fd(), streams.words.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut passed = SendAncillaryBuffer::new(&mut space);
    if !passed.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let order = [IoSlice::new(&[START])];
    rustix::io::retry_on_intr(|| sendmsg(&*host, &order, &mut passed, SendFlags::empty()))?;
    let mut answer = [0; 4];
    host.read_exact(&mut answer)?;
    Ok(match i32::from_le_bytes(answer) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    })
}

/// The next order of a worker; `None` when it is gone.
pub(super) fn next(worker: &UnixStream) -> io::Result<Option<KeeperStreams>> {
    let mut order = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut passed = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received =
        rustix::io::retry_on_intr(|| recvmsg(worker, &mut [IoSliceMut::new(&mut order)], &mut passed, flags))?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut fds = passed.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let mut fd = || fds.next().ok_or_else(malformed);
    Ok(Some(KeeperStreams { orders: fd()?, sound: fd()?, words: fd()? }))
}

/// Answers an order.
pub(super) fn started(worker: &mut UnixStream, started: &io::Result<()>) -> io::Result<()> {
    let answer = match started {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(nix::libc::EIO),
    };
    worker.write_all(&answer.to_le_bytes())
}

/// A frame: its length, and JSON.
pub(super) fn frame<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(value)?;
    let length = u32::try_from(json.len()).map_err(io::Error::other)?;
    Ok([&length.to_le_bytes()[..], &json].concat())
}

/// Reads a frame.
pub(super) fn read<T: for<'de> Deserialize<'de>>(stream: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > LARGEST_FRAME {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let mut json = vec![0; length];
    stream.read_exact(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}
