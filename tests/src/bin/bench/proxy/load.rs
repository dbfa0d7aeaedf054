//! The load: whole answers over many connections, one after another on each, and many streams at once. The load has
//! only an address, and does not depend on the gateway there.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use model_boss_protocol::Later;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::backend::{PACE, SENT};
use super::wire::{Chunks, Head, Length, More, clock, number_after, position};

/// The size of a question in bytes.
const BODY: usize = 1024;
/// The length of a gap that counts as a stall, in paces.
const STALL: u32 = 10;

/// The bytes of a question; for a streamed answer, with this many frames.
pub(super) fn question(address: SocketAddr, frames: Option<u64>) -> Vec<u8> {
    let head = r#"{"model":"mock","messages":[{"role":"user","content":""#;
    let tail = match frames {
        Some(frames) => format!(r#""}}],"max_tokens":{frames},"stream":true}}"#),
        None => r#""}],"max_tokens":10}"#.to_owned(),
    };
    let filling: String = ('a'..='z').cycle().take(BODY - head.len() - tail.len()).collect();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {BODY}\r\n\r\n{head}{filling}{tail}"
    )
    .into_bytes()
}

/// Requests whole answers over `connections` at once for `span`; returns their number.
pub(super) async fn whole_answers(address: SocketAddr, connections: usize, span: Duration) -> u64 {
    let end = Instant::now().later(span);
    let tasks: Vec<_> = (0..connections).map(|_| tokio::spawn(ask_until(address, end))).collect();
    let mut sum = 0;
    for task in tasks {
        sum += task.await.unwrap();
    }
    sum
}

async fn ask_until(address: SocketAddr, end: Instant) -> u64 {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let question = question(address, None);
    let mut received = Vec::with_capacity(16 * 1024);
    let mut count = 0;
    while Instant::now() < end {
        stream.write_all(&question).await.unwrap();
        received.clear();
        while !is_whole(&received) {
            assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0, "the gateway closed a connection");
        }
        count += 1;
    }
    count
}

/// Whether a whole successful answer has arrived.
fn is_whole(received: &[u8]) -> bool {
    let Some(head) = Head::find(received) else { return false };
    assert!(received.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(received));
    match head.body {
        Length::Known(size) => received.len() >= head.len + size,
        Length::Chunked => received.ends_with(b"\r\n0\r\n\r\n"),
    }
}

/// The time of each of `count` whole answers, one after another on one connection.
pub(super) fn latencies(address: SocketAddr, count: usize) -> Vec<Duration> {
    let question = question(address, None);
    one_by_one(address, &question, count, is_whole, is_whole)
}

/// The time to the first frame of each of `count` streams, one after another on one connection.
pub(super) fn first_frames(address: SocketAddr, count: usize) -> Vec<Duration> {
    let question = question(address, Some(1));
    one_by_one(address, &question, count, |received| position(received, SENT).is_some(), is_whole)
}

fn one_by_one(
    address: SocketAddr,
    question: &[u8],
    count: usize,
    there: impl Fn(&[u8]) -> bool,
    over: impl Fn(&[u8]) -> bool,
) -> Vec<Duration> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut received = Vec::with_capacity(16 * 1024);
    let mut piece = [0; 16 * 1024];
    let warm_up = count / 20;
    let mut times = Vec::with_capacity(count);
    for number in 0..warm_up + count {
        received.clear();
        let mut first = None;
        let asked = Instant::now();
        stream.write_all(question).unwrap();
        while !over(&received) {
            let size = stream.read(&mut piece).unwrap();
            assert_ne!(size, 0, "the gateway closed a connection");
            received.extend_from_slice(&piece[..size]);
            if first.is_none() && there(&received) {
                first = Some(asked.elapsed());
            }
        }
        if number >= warm_up {
            times.push(first.unwrap());
        }
    }
    times
}

/// The results of many streams at once.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// Frames that never arrived.
    pub(super) lost: u64,
    /// Gaps of more than ten paces.
    pub(super) stalls: u64,
    /// The times from the write of a frame in the backend to its arrival here.
    pub(super) transit: Vec<Duration>,
}

/// Runs `count` streams of `frames` each, with starts spread over one second.
pub(super) async fn streams(address: SocketAddr, count: u32, frames: u64) -> Streams {
    let begun = tokio::time::Instant::now();
    let tasks: Vec<_> = (0..count)
        .map(|number| {
            tokio::spawn(async move {
                let due = Duration::from_secs(1).saturating_mul(number) / count;
                tokio::time::sleep_until(begun.checked_add(due).unwrap_or(begun)).await;
                stream(address, frames).await
            })
        })
        .collect();
    let mut all = Streams::default();
    for task in tasks {
        let one = task.await.unwrap();
        all.lost += one.lost;
        all.stalls += one.stalls;
        all.transit.extend(one.transit);
    }
    all
}

async fn stream(address: SocketAddr, frames: u64) -> Streams {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(&question(address, Some(frames))).await.unwrap();
    let mut received = Vec::with_capacity(4 * 1024);
    let head = loop {
        if let Some(head) = Head::find(&received) {
            break head;
        }
        if stream.read_buf(&mut received).await.unwrap_or(0) == 0 {
            return Streams { lost: frames, ..Streams::default() };
        }
    };
    assert!(received.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&received));
    assert_eq!(head.body, Length::Chunked);
    received.drain(..head.len);

    let (mut chunks, mut data, mut result, mut last) = (Chunks::default(), Vec::new(), Streams::default(), clock());
    let mut more = chunks.push(&received, &mut data);
    let mut next = 0;
    loop {
        let now = clock();
        let mut frame_start = 0;
        while let Some(size) = position(&data[frame_start..], b"\n\n") {
            let frame = &data[frame_start..frame_start + size];
            frame_start += size + 2;
            let (Some(number), Some(sent)) = (number_after(frame, b"\"n\":"), number_after(frame, SENT)) else {
                continue;
            };
            result.lost += number - next;
            next = number + 1;
            result.transit.push(now.saturating_sub(Duration::from_nanos(sent)));
            result.stalls += u64::from(now.saturating_sub(last) > PACE.saturating_mul(STALL));
            last = now;
        }
        data.drain(..frame_start);
        if more == More::No {
            break;
        }
        received.clear();
        if stream.read_buf(&mut received).await.unwrap_or(0) == 0 {
            break;
        }
        more = chunks.push(&received, &mut data);
    }
    result.lost += frames - next;
    result
}
