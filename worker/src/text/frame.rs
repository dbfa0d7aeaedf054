//! Frames between a worker and its text processes: two lengths, a head in JSON, and a tail of plain bytes.

use std::io::{self, Read};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes in front of the head: the length of everything behind them, and that of the head.
const LENGTHS: usize = 8;

/// A question is made of a request's body, which is far smaller.
pub(super) const LARGEST_QUESTION: usize = 1 << 30;

/// Most bytes of an answer: its head, and a tail of [`LARGEST_TAIL`].
pub(super) const LARGEST_ANSWER: usize = LARGEST_TAIL + (1 << 20);

/// Most bytes of tokens or text in an answer.
pub(super) const LARGEST_TAIL: usize = 64 << 20;

/// The content of a frame, after its lengths.
#[derive(Debug)]
pub(super) struct Frame {
    bytes: Vec<u8>,
    head: usize,
}

/// The bytes of a frame.
pub(super) fn frame<T: Serialize>(head: &T, tail: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; LENGTHS];
    serde_json::to_writer(&mut bytes, head)?;
    let head = bytes.len() - LENGTHS;
    bytes.extend_from_slice(tail);
    let length = |length: usize| u32::try_from(length).map(u32::to_le_bytes).map_err(io::Error::other);
    let lengths = [length(bytes.len() - LENGTHS)?, length(head)?].concat();
    bytes[..LENGTHS].copy_from_slice(&lengths);
    Ok(bytes)
}

impl Frame {
    /// Reads a frame; `None` where the stream ends in front of one.
    pub(super) fn read(stream: &mut impl Read, most: usize) -> io::Result<Option<Self>> {
        let mut lengths = [0; LENGTHS];
        let first = stream.read(&mut lengths)?;
        if first == 0 {
            return Ok(None);
        }
        stream.read_exact(&mut lengths[first..])?;
        let mut frame = Self::sized(lengths, most)?;
        stream.read_exact(&mut frame.bytes)?;
        Ok(Some(frame))
    }

    /// Receives a frame without blocking the thread. A stream that ends is an error.
    pub(super) async fn receive(stream: &mut (impl AsyncRead + Unpin), most: usize) -> io::Result<Self> {
        let mut lengths = [0; LENGTHS];
        stream.read_exact(&mut lengths).await?;
        let mut frame = Self::sized(lengths, most)?;
        stream.read_exact(&mut frame.bytes).await?;
        Ok(frame)
    }

    fn sized(lengths: [u8; LENGTHS], most: usize) -> io::Result<Self> {
        let [a, b, c, d, e, f, g, h] = lengths;
        let (all, head) = (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes([e, f, g, h]) as usize);
        if all > most || head > all {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        Ok(Self { bytes: vec![0; all], head })
    }

    /// The head's value.
    pub(super) fn head<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.bytes[..self.head])
    }

    /// The bytes behind the head.
    pub(super) fn tail(&self) -> &[u8] {
        &self.bytes[self.head..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_as_it_went() {
        let bytes = frame(&("a", 1), b"tail").unwrap();
        let read = Frame::read(&mut &bytes[..], 100).unwrap().unwrap();
        assert_eq!((read.head::<(String, u8)>().unwrap(), read.tail()), (("a".to_owned(), 1), &b"tail"[..]));
        assert!(Frame::read(&mut &b""[..], 100).unwrap().is_none());
        for cut in 1..bytes.len() {
            assert!(Frame::read(&mut &bytes[..cut], 100).is_err(), "{cut}");
        }
        assert!(Frame::read(&mut &bytes[..], 5).is_err(), "longer than allowed");
        let wrong = [1, 0, 0, 0, 2, 0, 0, 0, 0, 0];
        assert!(Frame::read(&mut &wrong[..], 100).is_err(), "a head longer than the frame");
    }
}
