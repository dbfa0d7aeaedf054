//! Names in paths: decoding, and the answer where no model bears one.

use model_boss_protocol::{ApiError, ErrorCode};

pub(super) fn unknown_model(id: &str) -> ApiError {
    ApiError::new(ErrorCode::ModelNotFound, format!("the model '{id}' was not found; GET /v1/models lists them"))
        .with_param("model")
}

/// The text behind `%2F` and the like; `None` when it is no UTF-8 or a sign is cut off.
pub(super) fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        if *first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))?);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}
