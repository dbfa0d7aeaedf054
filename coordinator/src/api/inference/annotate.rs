//! Adds an object `model_boss` to the first and the last chunk of a stream (TR-2). It holds facts that were not known
//! when the headers were sent. All other bytes of the stream are unchanged.

use bytes::Bytes;
use memchr::memmem;
use model_boss_protocol::sse::EVENT_END;
use serde::Serialize;

use super::served::Served;

/// The longest incomplete event in bytes; a longer one passes unannotated.
const LONGEST_EVENT: usize = 8 << 20;

/// The annotator of one stream, event by event.
pub(crate) struct Annotator {
    /// The field to insert: `"model_boss":{…}`.
    field: Vec<u8>,
    /// The beginning of an event whose end has not arrived.
    unfinished: Vec<u8>,
    /// Whether the first chunk was annotated already.
    begun: bool,
}

/// The content of the object, which equals that of the headers.
#[derive(Serialize)]
struct Told<'a> {
    served_model: &'a str,
    rung: usize,
    rung_reason: String,
    queue_ms: u64,
    load_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<&'a str>,
}

impl Annotator {
    /// An annotator; `thinking` is the part of a wish about thinking that was not followed.
    pub(crate) fn new(served: &Served, thinking: Option<&str>) -> Self {
        let millis = |span: std::time::Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let told = Told {
            served_model: &served.model,
            rung: served.rung.position,
            rung_reason: served.rung.reason.to_string(),
            queue_ms: millis(served.queued),
            load_ms: millis(served.loading),
            thinking,
        };
        // Serialising texts and numbers cannot fail.
        let object = serde_json::to_string(&told).unwrap_or_else(|_| "{}".to_owned());
        let field = format!("\"model_boss\":{object}").into_bytes();
        Self { field, unfinished: Vec::new(), begun: false }
    }

    /// The events that are complete now, or `None`. An event over [`LONGEST_EVENT`] passes unchanged.
    pub(crate) fn push(&mut self, data: &[u8]) -> Option<Bytes> {
        self.unfinished.extend_from_slice(data);
        if self.unfinished.len() > LONGEST_EVENT {
            return self.rest();
        }
        let end = memmem::rfind(&self.unfinished, EVENT_END)? + EVENT_END.len();
        let rest = self.unfinished.split_off(end);
        let whole = std::mem::replace(&mut self.unfinished, rest);
        let mut out = Vec::with_capacity(whole.len() + 2 * self.field.len());
        let mut at = 0;
        while let Some(length) = memmem::find(&whole[at..], EVENT_END) {
            let end = at + length + EVENT_END.len();
            self.write(&whole[at..end], &mut out);
            at = end;
        }
        Some(Bytes::from(out))
    }

    /// The rest when the stream ends.
    pub(crate) fn rest(&mut self) -> Option<Bytes> {
        let rest = std::mem::take(&mut self.unfinished);
        (!rest.is_empty()).then(|| Bytes::from(rest))
    }

    fn write(&mut self, event: &[u8], out: &mut Vec<u8>) {
        let brace = event.strip_prefix(b"data:").and_then(|data| {
            let inner = data.iter().position(|byte| !byte.is_ascii_whitespace())?;
            (data[inner] == b'{').then_some(5 + inner)
        });
        let Some(brace) = brace.filter(|_| !self.begun || is_last(event)) else {
            return out.extend_from_slice(event);
        };
        self.begun = true;
        let (head, tail) = event.split_at(brace + 1);
        out.extend_from_slice(head);
        out.extend_from_slice(&self.field);
        if tail.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'}') {
            out.push(b',');
        }
        out.extend_from_slice(tail);
    }
}

/// Whether a chunk ends the answer: it has a finish reason, or the usage. Inside a text quotes are escaped, so a match
/// is a key.
fn is_last(event: &[u8]) -> bool {
    let value_of = |key: &[u8]| {
        let after = memmem::find(event, key)? + key.len();
        event[after..].iter().find(|byte| !byte.is_ascii_whitespace() && **byte != b':').copied()
    };
    value_of(b"\"finish_reason\"") == Some(b'"') || value_of(b"\"usage\"") == Some(b'{')
}

#[cfg(test)]
mod tests {
    use super::*;
    use model_boss_core::{RungChoice, RungReason};
    use std::time::Duration;

    fn annotator() -> Annotator {
        let served = Served {
            model: "small".into(),
            rung: RungChoice { position: 1, reason: RungReason::Preferred },
            queued: Duration::from_millis(1_200),
            loading: Duration::from_secs(1),
        };
        Annotator::new(&served, Some("on"))
    }

    const STREAM: &str = ": working\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\"},\"finish_reason\":null}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"\\\"finish_reason\\\":\\\"x\\\"\"},\"finish_reason\":null}],\"usage\":null}\n\n\
        data: {\"choices\":[{\"delta\":{},\"finish_reason\": \"stop\"}]}\n\ndata: [DONE]\n\n";

    fn annotated(pieces: &[&[u8]]) -> String {
        let mut annotator = annotator();
        let mut out = Vec::new();
        for piece in pieces {
            out.extend_from_slice(&annotator.push(piece).unwrap_or_default());
        }
        out.extend_from_slice(&annotator.rest().unwrap_or_default());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn tr_2_the_first_and_the_last_chunk_say_who_serves_and_nothing_else_changes() {
        let out = annotated(&[STREAM.as_bytes()]);
        let field = "\"model_boss\":{\"served_model\":\"small\",\"rung\":1,\"rung_reason\":\"preferred\",\
            \"queue_ms\":1200,\"load_ms\":1000,\"thinking\":\"on\"},";
        assert_eq!(out.matches(field).count(), 2, "{out}");
        assert_eq!(out.replace(field, ""), STREAM);
        let events: Vec<&str> = out.split("\n\n").collect();
        assert!(events[1].contains(field) && !events[2].contains(field) && events[3].contains(field), "{out}");
        for event in &events[1..4] {
            let json = event.strip_prefix("data: ").unwrap();
            serde_json::from_str::<serde_json::Value>(json).unwrap();
        }
    }

    #[test]
    fn an_event_without_an_end_goes_on_as_it_is() {
        let mut annotator = annotator();
        let piece = vec![b'x'; 1 << 20];
        let held = (0..LONGEST_EVENT >> 20).filter(|_| annotator.push(&piece).is_none()).count();
        assert_eq!(held, LONGEST_EVENT >> 20);
        assert_eq!(annotator.push(&piece).map(|all| all.len()), Some(LONGEST_EVENT + (1 << 20)));
        assert!(annotator.unfinished.is_empty());
    }

    #[test]
    fn wherever_the_stream_is_cut_it_comes_out_the_same() {
        let whole = annotated(&[STREAM.as_bytes()]);
        for cut in 0..STREAM.len() {
            let (a, b) = STREAM.as_bytes().split_at(cut);
            assert_eq!(annotated(&[a, b]), whole, "cut at {cut}");
        }
        assert_eq!(annotated(&[b"data: {}\n\n"]).matches("}}").count(), 1);
        assert_eq!(annotated(&[b"data: {\"half"]), "data: {\"half");
    }
}
