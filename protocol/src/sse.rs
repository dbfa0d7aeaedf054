//! Framing of server-sent events (WHATWG HTML, "Server-sent events") for OpenAI's streams: one `data:` line for each
//! event, and comments while no event is sent.

/// The empty line that ends an event.
pub const EVENT_END: &[u8] = b"\n\n";

/// The last event of a stream of OpenAI's API.
pub const DONE: &str = "data: [DONE]\n\n";

/// An event without a name. `data` is one line, such as JSON.
pub fn event(data: impl std::fmt::Display) -> String {
    format!("data: {data}\n\n")
}

/// A comment, which readers pass over; it keeps a silent connection alive. `text` is one line.
pub fn comment(text: &str) -> String {
    format!(": {text}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_and_comments_end_with_an_empty_line() {
        assert_eq!(event(r#"{"a":1}"#), "data: {\"a\":1}\n\n");
        assert_eq!(event("[DONE]"), DONE);
        assert_eq!(comment("loading"), ": loading\n\n");
        assert!(DONE.as_bytes().ends_with(EVENT_END));
    }
}
