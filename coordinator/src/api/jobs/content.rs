//! A file as an answer, whole or in part (RFC 9110, section 14).

use std::fs::File;

use axum::body::Body;
use axum::response::Response;
use http::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderValue, RANGE,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, StatusCode};
use model_boss_protocol::{ApiError, ErrorCode};

use crate::jobs::FileBody;

/// The answer with a file's content, or the part of it that the request's headers ask for.
pub(super) fn content(
    file: File,
    bytes: u64,
    content_type: &str,
    headers: &HeaderMap,
    filename: Option<&str>,
) -> Result<Response, ApiError> {
    let asked = headers.get(RANGE).and_then(|value| value.to_str().ok()).and_then(|text| ByteRange::parse(text, bytes));
    let (status, start, length) = match asked {
        None => (StatusCode::OK, 0, bytes),
        Some(ByteRange::Part { first, length }) => (StatusCode::PARTIAL_CONTENT, first, length),
        Some(ByteRange::Outside) => {
            let message = format!("the range begins behind the end; the content has {bytes} bytes");
            return Err(ApiError::new(ErrorCode::RangeNotSatisfiable, message).with_param("Range"));
        }
    };
    let mut response = Response::new(Body::new(FileBody::new(file, start, length)));
    *response.status_mut() = status;
    let answered = response.headers_mut();
    let kind = HeaderValue::from_str(content_type);
    answered.insert(CONTENT_TYPE, kind.unwrap_or(HeaderValue::from_static("application/octet-stream")));
    answered.insert(CONTENT_LENGTH, HeaderValue::from(length));
    answered.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // Clients choose the content: a browser must not take it for a page of this server.
    answered.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(name) = filename {
        let plain: String =
            name.chars().filter(|c| c.is_ascii_alphanumeric() || "._- ".contains(*c)).take(100).collect();
        if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{plain}\"")) {
            answered.insert(CONTENT_DISPOSITION, value);
        }
    }
    if status == StatusCode::PARTIAL_CONTENT {
        let last = start.saturating_add(length).saturating_sub(1);
        if let Ok(range) = HeaderValue::from_str(&format!("bytes {start}-{last}/{bytes}")) {
            answered.insert(CONTENT_RANGE, range);
        }
    }
    Ok(response)
}

/// One range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteRange {
    Part {
        first: u64,
        length: u64,
    },
    /// It begins behind the end.
    Outside,
}

impl ByteRange {
    /// Reads `bytes=1-2`, `bytes=1-` or `bytes=-2`. Another unit, several ranges and nonsense are ignored, as the
    /// standard permits: the answer is then whole.
    fn parse(text: &str, bytes: u64) -> Option<Self> {
        let (first, last) = text.trim().strip_prefix("bytes=")?.split_once('-')?;
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let (first, last) = match (first.trim(), last.trim()) {
            ("", last) => match number(last)? {
                0 => return Some(Self::Outside),
                suffix => (bytes.saturating_sub(suffix), bytes.checked_sub(1)?),
            },
            (first, "") => (number(first)?, bytes.saturating_sub(1)),
            (first, last) => (number(first)?, number(last)?.min(bytes.saturating_sub(1))),
        };
        if first >= bytes {
            return Some(Self::Outside);
        }
        let length = last.checked_sub(first)?.checked_add(1)?;
        Some(Self::Part { first, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_26_ranges_are_read_as_the_standard_has_them() {
        let part = |first, length| Some(ByteRange::Part { first, length });
        for (text, expected) in [
            ("bytes=0-0", part(0, 1)),
            ("bytes=2-5", part(2, 4)),
            ("bytes=2-", part(2, 8)),
            ("bytes=-3", part(7, 3)),
            ("bytes=-30", part(0, 10)),
            ("bytes=9-900", part(9, 1)),
            ("bytes=10-", Some(ByteRange::Outside)),
            ("bytes=-0", Some(ByteRange::Outside)),
            ("bytes=5-2", None),
            ("bytes=0-1,3-4", None),
            ("lines=0-1", None),
            ("bytes=a-b", None),
        ] {
            assert_eq!(ByteRange::parse(text, 10), expected, "{text}");
        }
        assert_eq!(ByteRange::parse("bytes=0-", 0), Some(ByteRange::Outside));
    }
}
