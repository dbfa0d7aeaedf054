//! The whole answer to a line of a batch.

use std::time::Duration;

use axum::response::Response;
use http::header::RETRY_AFTER;
use http_body_util::BodyExt;

/// The longest line of a batch, and of its answer.
pub(super) const LONGEST_LINE: usize = 64 << 20;

/// The status, the named pause, and the body of an answer.
pub(super) async fn gathered(response: Response) -> (u16, Option<Duration>, Vec<u8>) {
    let again = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let status = response.status().as_u16();
    let mut body = response.into_body();
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame.map(http_body::Frame::into_data) {
            Ok(Ok(data)) => text.extend_from_slice(&data),
            Ok(Err(_)) => {}
            Err(_) => return (502, None, Vec::new()),
        }
        if text.len() > LONGEST_LINE {
            return (500, None, b"{\"error\":{\"message\":\"the answer is too long for a batch\"}}".to_vec());
        }
    }
    (status, again.map(Duration::from_secs), text)
}
