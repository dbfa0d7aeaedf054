//! Just enough HTTP/1.1 for the load and the backend: heads, lengths, chunks. The module does not interpret them. A
//! real client or server would cost more than the measured gateways.

use std::ops::Range;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The time of the clock that all processes of a machine share.
pub(super) fn clock() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap().into()
}

/// The head of a message: its length, and how its body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Bytes of the head, the empty line included.
    pub(super) len: usize,
    /// The delimitation of the body.
    pub(super) body: Length,
}

/// The ways to delimit a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Known(usize),
    Chunked,
}

impl Head {
    /// The head at the beginning of `bytes`, when all of it has arrived.
    pub(super) fn find(bytes: &[u8]) -> Option<Self> {
        let len = position(bytes, b"\r\n\r\n")? + 4;
        let head = &bytes[..len];
        let field = |name: &[u8]| {
            let mut lines = head.split(|byte| *byte == b'\n').skip(1);
            lines
                .find(|line| line.len() > name.len() && line[..name.len()].eq_ignore_ascii_case(name))
                .map(|line| std::str::from_utf8(&line[name.len()..]).unwrap_or_default().trim())
        };
        let body = match field(b"content-length:") {
            Some(digits) => Length::Known(digits.parse().unwrap()),
            None if field(b"transfer-encoding:").is_some() => Length::Chunked,
            None => Length::Known(0),
        };
        Some(Self { len, body })
    }
}

/// A decoder of a chunked body that arrives in any pieces.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    raw: Vec<u8>,
}

/// Whether more chunks follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum More {
    Yes,
    No,
}

impl Chunks {
    /// Adds received bytes and appends every whole chunk's data to `data`.
    pub(super) fn push(&mut self, received: &[u8], data: &mut Vec<u8>) -> More {
        self.raw.extend_from_slice(received);
        let mut at = 0;
        let more = loop {
            let Some((chunk, next)) = next_chunk(&self.raw, at) else { break More::Yes };
            if chunk.is_empty() {
                break More::No;
            }
            data.extend_from_slice(&self.raw[chunk]);
            at = next;
        };
        self.raw.drain(..at);
        more
    }
}

/// The data of the chunk that begins at `at`, and where the next one begins.
fn next_chunk(raw: &[u8], at: usize) -> Option<(Range<usize>, usize)> {
    let line = position(&raw[at..], b"\r\n")?;
    let size = usize::from_str_radix(std::str::from_utf8(&raw[at..at + line]).unwrap().trim(), 16).unwrap();
    let start = at + line + 2;
    (raw.len() >= start + size + 2).then(|| (start..start + size, start + size + 2))
}

/// The position of the first `needle`.
pub(super) fn position(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    let first = needle[0];
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == first) {
        if bytes[from + at..].starts_with(needle) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

/// The number after `key`.
pub(super) fn number_after(bytes: &[u8], key: &[u8]) -> Option<u64> {
    let digits = &bytes[position(bytes, key)? + key.len()..];
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_lengths() {
        assert_eq!(Head::find(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n"), None);
        let known = Head::find(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").unwrap();
        assert_eq!(known, Head { len: 38, body: Length::Known(5) });
        let chunked = Head::find(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
        assert_eq!(chunked.body, Length::Chunked);
    }

    #[test]
    fn chunks_in_any_pieces() {
        let raw = b"5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n";
        for size in 1..raw.len() {
            let (mut chunks, mut data, mut more) = (Chunks::default(), Vec::new(), More::Yes);
            for piece in raw.chunks(size) {
                assert_eq!(more, More::Yes);
                more = chunks.push(piece, &mut data);
            }
            assert_eq!((data.as_slice(), more), (b"hello!".as_slice(), More::No), "pieces of {size}");
        }
    }

    #[test]
    fn numbers_behind_keys() {
        assert_eq!(number_after(br#"{"a":1,"max_tokens":250}"#, b"\"max_tokens\":"), Some(250));
        assert_eq!(number_after(b"{}", b"\"max_tokens\":"), None);
    }
}
