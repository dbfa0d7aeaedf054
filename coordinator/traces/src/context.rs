//! W3C trace context in a request's headers (<https://www.w3.org/TR/trace-context/>).

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanContext, TraceContextExt};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_sdk::propagation::TraceContextPropagator;

const PARENT: HeaderName = HeaderName::from_static("traceparent");
const STATE: HeaderName = HeaderName::from_static("tracestate");

/// The longest `tracestate` that is taken over. The specification asks for at least 512 bytes.
const MAX_STATE: usize = 4096;

/// The length of `traceparent` in version 00.
const PARENT_LENGTH: usize = 55;

/// The parent that a request names. A header that breaks the rules is ignored, as they say: the request then begins a
/// trace.
pub(crate) fn parent(headers: &HeaderMap) -> Context {
    let mut given = headers.get_all(PARENT).iter();
    let (Some(parent), None) = (given.next(), given.next()) else { return Context::new() };
    if !is_parent(parent.as_bytes()) {
        return Context::new();
    }
    let mut read = HeaderMap::with_capacity(2);
    read.insert(PARENT, parent.clone());
    // Several headers are one list.
    let states: Vec<&[u8]> = headers.get_all(STATE).iter().map(HeaderValue::as_bytes).collect();
    let states = states.join(&b","[..]);
    if let Some(state) = HeaderValue::from_bytes(&states).ok().filter(|_| (1..=MAX_STATE).contains(&states.len())) {
        read.insert(STATE, state);
    }
    TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(&read))
}

/// Whether the bytes are version, trace, parent and flags in lower case; a later version may add to them.
fn is_parent(text: &[u8]) -> bool {
    let hex = |part: &[u8]| part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let Some((base, rest)) = text.split_at_checked(PARENT_LENGTH) else { return false };
    let fields = [&base[..2], &base[3..35], &base[36..52], &base[53..]];
    let dashes = [base[2], base[35], base[52]].iter().all(|byte| *byte == b'-');
    let is_later = fields[0] != b"00" && fields[0] != b"ff" && rest.first() == Some(&b'-');
    let ends = fields[0] != b"ff" && rest.is_empty();
    dashes && fields.iter().all(|field| hex(field)) && (ends || is_later)
}

/// Writes the context of a span into headers, in place of what is there.
pub(crate) fn inject(span: &SpanContext, headers: &mut HeaderMap) {
    headers.remove(PARENT);
    headers.remove(STATE);
    let context = within(span);
    TraceContextPropagator::new().inject_context(&context, &mut HeaderInjector(headers));
    if headers.get(STATE).is_some_and(HeaderValue::is_empty) {
        headers.remove(STATE);
    }
}

/// The context in which a span is the parent.
pub(crate) fn within(span: &SpanContext) -> Context {
    // Despite its name, the call keeps whether the span is remote.
    Context::new().with_remote_span_context(span.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn read(parents: &[&str], states: &[&str]) -> SpanContext {
        let mut headers = HeaderMap::new();
        for value in parents {
            headers.append(PARENT, HeaderValue::from_str(value).unwrap());
        }
        for value in states {
            headers.append(STATE, HeaderValue::from_str(value).unwrap());
        }
        parent(&headers).span().span_context().clone()
    }

    #[test]
    fn a_parent_is_read_and_written() {
        let span = read(&[GOOD], &["a=1", "b=2"]);
        assert_eq!(span.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(span.is_sampled() && span.is_remote());
        let mut headers = HeaderMap::new();
        inject(&span, &mut headers);
        assert!(headers[PARENT] == GOOD && headers[STATE] == "a=1,b=2", "{headers:?}");
        inject(&read(&[GOOD], &[]), &mut headers);
        assert!(!headers.contains_key(STATE));
    }

    #[test]
    fn a_bad_parent_is_ignored() {
        let later = format!("{}-more", GOOD.replacen("00", "cc", 1));
        assert!(read(&[&later], &[]).is_valid(), "a later version is read as far as it is known");
        for bad in [
            "",
            "00",
            &GOOD.to_uppercase(),
            &format!("{GOOD}-more"),
            &format!("{GOOD}-"),
            &GOOD.replacen("00", "ff", 1),
            &GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &GOOD.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &GOOD.replace("-01", "-+1"),
            &GOOD.replace('-', "_"),
        ] {
            assert!(!read(&[bad], &["a=1"]).is_valid(), "{bad}");
        }
        assert!(!read(&[GOOD, GOOD], &[]).is_valid(), "two are none");
        assert_eq!(read(&[GOOD], &["no pairs at all"]).trace_state().header(), "", "a bad state is dropped alone");
    }
}
