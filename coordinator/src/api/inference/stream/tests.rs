use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

const TIMES: CommentTimes = CommentTimes { first: Duration::from_secs(2), interval: Duration::from_secs(10) };

async fn next(body: &mut StreamBody) -> Option<String> {
    let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
    let bytes = frame.unwrap_or_else(|never| match never {}).into_data().unwrap();
    Some(String::from_utf8(bytes.to_vec()).unwrap())
}

/// Explains with `loading 0%`, `loading 1%`, …
fn counting() -> impl Fn() -> Explanation + Send + 'static {
    let asked = Arc::new(AtomicU32::new(0));
    move || {
        let percent = asked.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move { Some(format!("loading guide {percent}%")) })
    }
}

fn never() -> Pending {
    Box::pin(pending())
}

fn fails_after(delay: Duration) -> Pending {
    Box::pin(async move {
        tokio::time::sleep(delay).await;
        Err(ApiError::new(ErrorCode::ModelLoadFailed, "the file is cut off"))
    })
}

#[tokio::test(start_paused = true)]
async fn rc_12_the_first_comment_comes_with_the_headers_and_the_next_ones_ten_seconds_apart() {
    let mut body = StreamBody::waiting(never(), counting(), TIMES);
    let began = Instant::now();
    for n in 0..4 {
        assert_eq!(next(&mut body).await, Some(format!(": loading guide {n}%\n\n")));
        assert_eq!(began.elapsed().as_secs(), n * 10);
    }
}

#[tokio::test(start_paused = true)]
async fn rc_12_an_error_after_comments_is_one_event_and_the_end() {
    let mut body = StreamBody::waiting(fails_after(Duration::from_secs(13)), counting(), TIMES);
    let began = Instant::now();
    let mut frames = Vec::new();
    while let Some(frame) = next(&mut body).await {
        frames.push(frame);
    }
    assert_eq!(began.elapsed().as_secs(), 13);
    assert_eq!(frames.len(), 3, "{frames:?}");
    let event = frames[2].strip_prefix("data: ").and_then(|rest| rest.strip_suffix("\n\n")).unwrap();
    let value: serde_json::Value = serde_json::from_str(event).unwrap();
    assert_eq!(value["error"]["code"], "model_load_failed");
    assert_eq!(value["source"], "coordinator");
    assert!(body.is_end_stream());
}

#[tokio::test(start_paused = true)]
async fn rc_12_a_slow_explanation_delays_no_answer() {
    let explain = || -> Explanation { Box::pin(pending()) };
    let mut body = StreamBody::waiting(fails_after(Duration::from_secs(1)), explain, TIMES);
    assert!(next(&mut body).await.unwrap().starts_with("data: {\"error\""));
    assert_eq!(next(&mut body).await, None);
}

#[tokio::test(start_paused = true)]
async fn rc_12_without_a_reason_the_comment_is_still_sent_and_stays_one_line() {
    let explain = || -> Explanation { Box::pin(async { None }) };
    let mut body = StreamBody::waiting(never(), explain, TIMES);
    assert_eq!(next(&mut body).await.as_deref(), Some(": working\n\n"));
    assert_eq!(comment("a\r\nb\n\ndata: x"), ": a  b  data: x\n\n");
}

#[tokio::test(start_paused = true)]
async fn silence_counts_from_the_last_byte() {
    let mut silence = SentSilence::new(Duration::from_secs(10));
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(7)).await;
    silence.sent();
    poll_fn(|cx| silence.poll(cx)).await;
    assert_eq!(began.elapsed().as_secs(), 17);
}
