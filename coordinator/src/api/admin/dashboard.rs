//! The files of the dashboard, which are part of the program. They hold no data: the page reads the API with the key of
//! its user.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH,
    REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderName, StatusCode};
use model_boss_dashboard::DashboardFile;
use model_boss_protocol::{ApiError, ErrorCode};

use super::status;
use crate::api::route::Call;

/// `GET` and `HEAD /`: the dashboard for browsers, and a sign of life for other programs.
pub(crate) async fn root(call: Call) -> Result<Response, ApiError> {
    let headers = call.request.headers();
    let mut answer = match wants_page(headers) {
        true => sent(model_boss_dashboard::page(), headers),
        false => status::root(call).await?,
    };
    answer.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    Ok(answer)
}

/// `GET /dashboard/NAME`: a file that the page names.
pub(crate) async fn file(call: Call) -> Result<Response, ApiError> {
    let path = call.request.uri().path();
    let name = path.strip_prefix("/dashboard/").unwrap_or_default();
    let file = model_boss_dashboard::file(name).ok_or_else(|| {
        ApiError::new(ErrorCode::NotFound, format!("the dashboard has no file '{name}'; open / for the page"))
    })?;
    Ok(sent(file, call.request.headers()))
}

/// Whether the client names HTML itself. `*/*` is what curl and libraries send.
fn wants_page(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|kind| {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("text/html") || kind.eq_ignore_ascii_case("application/xhtml+xml")
    })
}

fn sent(file: &'static DashboardFile, asked: &HeaderMap) -> Response {
    let known = asked.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let is_known = known
        .flat_map(|tags| tags.split(','))
        .map(str::trim)
        .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == file.etag);
    let mut answer = Response::new(if is_known { Body::empty() } else { Body::from(Bytes::from_static(file.bytes)) });
    if is_known {
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = answer.headers_mut();
    // Hexadecimal digits in quotes are a valid value.
    headers.insert(ETAG, HeaderValue::from_str(&file.etag).unwrap_or(HeaderValue::from_static("\"\"")));
    // A new version of the program has new files under the same names.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(file.content_type));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(model_boss_dashboard::CONTENT_SECURITY_POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin"));
    answer
}
