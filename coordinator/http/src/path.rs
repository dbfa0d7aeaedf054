//! Names and parameters in request targets, and the error for an unknown model.

use std::borrow::Cow;

use form_urlencoded::Parse;
use http::Uri;
use model_boss_protocol::{ApiError, ErrorCode};
use percent_encoding::percent_decode_str;

/// The error of a request that names a model which does not exist.
pub fn unknown_model(id: &str) -> ApiError {
    ApiError::new(ErrorCode::ModelNotFound, format!("the model '{id}' was not found; GET /v1/models lists them"))
        .with_param("model")
}

/// The text of a percent-encoded part of a path; `None` when it is not UTF-8 or an escape is incomplete.
pub fn percent_decode(text: &str) -> Option<String> {
    let is_sign = |rest: &str| rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
    if !text.split('%').skip(1).all(is_sign) {
        return None;
    }
    percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)
}

/// The parameters of a query, in order.
pub fn parameters(target: &Uri) -> Parse<'_> {
    form_urlencoded::parse(target.query().unwrap_or_default().as_bytes())
}

/// The last value of a parameter.
pub fn parameter<'a>(target: &'a Uri, name: &str) -> Option<Cow<'a, str>> {
    parameters(target).filter(|(key, _)| key == name).map(|(_, value)| value).last()
}

/// A parameter that is true or false, or 1 or 0.
pub fn flag(target: &Uri, name: &str, default: bool) -> Result<bool, ApiError> {
    match parameter(target, name).as_deref() {
        None => Ok(default),
        Some("true" | "1") => Ok(true),
        Some("false" | "0") => Ok(false),
        Some(other) => Err(ApiError::invalid(name, format!("'{name}' must be true or false, not '{other}'"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_decoded_or_refused() {
        for (text, id) in [
            ("guide", Some("guide")),
            ("team/m:1", Some("team/m:1")),
            ("team%2Fm%3A1", Some("team/m:1")),
            ("a+b", Some("a+b")),
            ("%67uide", Some("guide")),
            ("%", None),
            ("%2", None),
            ("%zz", None),
            ("%+1", None),
            ("%ff", None),
        ] {
            assert_eq!(percent_decode(text).as_deref(), id, "{text}");
        }
    }

    #[test]
    fn parameters_are_decoded_and_the_last_of_a_name_counts() {
        let target: Uri = "/v1/models?a=1&b=%2Fx+y&a=2&c".parse().unwrap();
        assert_eq!(parameter(&target, "a").as_deref(), Some("2"));
        assert_eq!(parameter(&target, "b").as_deref(), Some("/x y"));
        assert_eq!(parameter(&target, "c").as_deref(), Some(""));
        assert_eq!(parameter(&target, "d"), None);
    }
}
