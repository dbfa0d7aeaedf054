//! Server-sent events: parses the bytes of a stream into events, and writes events as bytes.

use memchr::memchr;
use model_boss_protocol::sse::event;

/// One entry of an event stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SseItem {
    /// An event with data.
    Event {
        /// The `event:` line; empty when there is none.
        name: String,
        /// The `data:` lines, joined by newlines.
        data: String,
    },
    /// A comment, which keeps the connection alive; without its leading colon.
    Comment(String),
}

/// Limit in bytes for a line and for the data of one event; an image in base64 takes about a tenth of it. The reader
/// skips longer ones, so that a stream without line breaks takes no memory.
const LONGEST: usize = 8 << 20;

/// Parses a stream, wherever its bytes were cut into pieces.
#[derive(Debug, Default)]
pub struct SseReader {
    /// The start of a line whose end has not arrived.
    line: Vec<u8>,
    name: String,
    data: Option<String>,
    /// Whether the current line exceeds [`LONGEST`] and is skipped.
    too_long: bool,
}

impl SseReader {
    /// Takes the next bytes; returns the entries that they complete.
    pub fn push(&mut self, mut bytes: &[u8]) -> Vec<SseItem> {
        let mut items = Vec::new();
        while let Some(end) = memchr(b'\n', bytes) {
            self.keep(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            if !std::mem::take(&mut self.too_long) {
                let line = String::from_utf8_lossy(&line);
                items.extend(self.take_line(line.trim_end_matches('\r')));
            }
        }
        self.keep(bytes);
        items
    }

    /// Appends bytes to the current line.
    fn keep(&mut self, bytes: &[u8]) {
        self.too_long |= self.line.len() + bytes.len() > LONGEST;
        if self.too_long {
            self.line = Vec::new();
        } else {
            self.line.extend_from_slice(bytes);
        }
    }

    fn take_line(&mut self, line: &str) -> Option<SseItem> {
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            return self.data.take().map(|data| SseItem::Event { name, data });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => return Some(SseItem::Comment(value.to_owned())),
            "event" => value.clone_into(&mut self.name),
            "data" => match &mut self.data {
                Some(data) if data.len() + value.len() > LONGEST => {}
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            _ => {}
        }
        None
    }
}

/// Writes an event without a name, as in OpenAI's streams.
pub fn data(out: &mut Vec<u8>, json: &serde_json::Value) {
    out.extend_from_slice(event(json).as_bytes());
}

/// Writes an event with a name, as in Anthropic's streams.
pub fn named(out: &mut Vec<u8>, name: &str, json: &serde_json::Value) {
    out.extend_from_slice(format!("event: {name}\n").as_bytes());
    data(out, json);
}

/// Writes an event that was read from another stream.
pub fn passed(out: &mut Vec<u8>, name: &str, data: &str) {
    if !name.is_empty() {
        out.extend_from_slice(format!("event: {name}\n").as_bytes());
    }
    for line in data.split('\n') {
        out.extend_from_slice(format!("data: {line}\n").as_bytes());
    }
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str =
        ": loading\n\nevent: a\r\ndata: {\"x\":1}\r\n\r\ndata: one\ndata:two\n\nid: 7\ndata: [DONE]\n\nrest";

    fn event(name: &str, data: &str) -> SseItem {
        SseItem::Event { name: name.into(), data: data.into() }
    }

    #[test]
    fn a_line_without_an_end_takes_no_memory_and_what_follows_it_is_read() {
        let mut reader = SseReader::default();
        let piece = vec![b'x'; 1 << 20];
        assert!(reader.push(b"data: ").is_empty());
        for _ in 0..=LONGEST >> 20 {
            assert!(reader.push(&piece).is_empty());
            assert!(reader.line.capacity() <= 2 * LONGEST);
        }
        assert_eq!(reader.line.capacity(), 0);
        assert_eq!(reader.push(b"\n\ndata: after\n\n"), [event("", "after")]);
    }

    #[test]
    fn a_stream_reads_the_same_however_it_is_cut() {
        let expected = vec![
            SseItem::Comment("loading".into()),
            event("a", "{\"x\":1}"),
            event("", "one\ntwo"),
            event("", "[DONE]"),
        ];
        for cut in 0..STREAM.len() {
            let mut reader = SseReader::default();
            let mut items = reader.push(&STREAM.as_bytes()[..cut]);
            items.extend(reader.push(&STREAM.as_bytes()[cut..]));
            assert_eq!(items, expected, "cut at {cut}");
        }
    }
}
