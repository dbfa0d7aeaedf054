//! `GET /api/v1/logs/{model}`: the output of a model's workers, from its log file.

use std::future::Future;
use std::io::SeekFrom;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body::Frame;
use model_boss_http::path::{parameters, percent_decode, unknown_model};
use model_boss_lease_store::{StateFileUse, open_state_file};
use model_boss_protocol::{ApiError, ErrorCode};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::task::spawn_blocking;

use crate::api::route::Call;
use crate::supervisor::{earlier_log, log_path};

/// The number of lines without a `lines` parameter.
const LINES: usize = 200;
/// The most bytes at the file's end that are searched for the last lines.
const TAIL: u64 = 1 << 20;
/// The interval between reads of a followed file.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The lines that the query (`?lines=200&follow=true`) selects.
pub(crate) async fn logs(call: Call) -> Result<Response, ApiError> {
    let context = &call.context;
    let path = call.request.uri().path();
    let id = path.split_once("/logs/").map_or("", |(_, id)| id);
    let id = percent_decode(id).ok_or_else(|| unknown_model(id))?;
    let catalog = context.catalog.current();
    let model = catalog.find(&id).ok_or_else(|| unknown_model(&id))?;
    let (mut lines, mut follow) = (LINES, false);
    for (name, value) in parameters(call.request.uri()) {
        match (&*name, &*value) {
            ("lines", number) => {
                let wrong = |_| ApiError::invalid("lines", format!("'lines' must be a whole number, not '{number}'"));
                lines = number.parse().map_err(wrong)?;
            }
            ("follow", "true" | "1") => follow = true,
            ("follow", "false" | "0") => follow = false,
            (name, value) => return Err(ApiError::invalid(name, format!("'{name}={value}' is not understood here"))),
        }
    }
    let file = log_path(&context.logs, &model.description.id);
    let (text, end) = tail(&file, lines).await.map_err(|error| {
        let message = format!("the log of '{id}' cannot be read: {error}");
        ApiError::new(ErrorCode::Internal, message)
    })?;
    let body = match follow {
        false => Body::from(text),
        true => Body::new(Followed { first: Some(text).filter(|text| !text.is_empty()), next: more(file, end) }),
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Ok(response)
}

/// The last lines and their end in the file. A model that was never loaded has no lines. Right after a rename, the
/// lines come from the renamed file.
async fn tail(file: &Path, lines: usize) -> std::io::Result<(Bytes, u64)> {
    let (mut text, end) = end_of(file).await?;
    if memchr::memchr_iter(b'\n', &text).count() < lines {
        let (mut earlier, _) = end_of(&earlier_log(file)).await?;
        earlier.append(&mut text);
        text = earlier;
    }
    Ok((Bytes::from(last_lines(&text, lines).to_vec()), end))
}

/// The end of a file, and the file's length. A missing file counts as empty.
async fn end_of(file: &Path) -> std::io::Result<(Vec<u8>, u64)> {
    let mut file = match open(file).await {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        Err(error) => return Err(error),
    };
    let size = file.metadata().await?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(TAIL))).await?;
    let mut text = Vec::new();
    file.take(TAIL).read_to_end(&mut text).await?;
    let end = size.saturating_sub(TAIL) + text.len() as u64;
    Ok((text, end))
}

async fn open(file: &Path) -> std::io::Result<File> {
    let file = file.to_owned();
    let opened = spawn_blocking(move || open_state_file(&file, StateFileUse::Read)).await;
    opened.unwrap_or_else(|_| Err(std::io::ErrorKind::Interrupted.into())).map(File::from_std)
}

fn last_lines(text: &[u8], lines: usize) -> &[u8] {
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let starts = memchr::memrchr_iter(b'\n', body);
    match lines {
        0 => &[],
        _ => starts.skip(lines - 1).map(|at| &text[at + 1..]).next().unwrap_or(text),
    }
}

type More = Pin<Box<dyn Future<Output = (PathBuf, Bytes, u64)> + Send>>;

/// The bytes after `from`, if there are any.
fn more(file: PathBuf, from: u64) -> More {
    Box::pin(async move {
        let mut from = from;
        loop {
            // A file that became shorter was renamed: its rest is in the renamed file, and a new one begins.
            let size = tokio::fs::metadata(&file).await.map_or(0, |about| about.len());
            if size < from {
                let rest = read_from(&earlier_log(&file), from).await.unwrap_or_default();
                if !rest.is_empty() {
                    return (file, rest, 0);
                }
                from = 0;
            }
            if size > from
                && let Ok(text) = read_from(&file, from).await
                && !text.is_empty()
            {
                let end = from + text.len() as u64;
                return (file, text, end);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    })
}

async fn read_from(file: &Path, from: u64) -> std::io::Result<Bytes> {
    let mut file = open(file).await?;
    file.seek(SeekFrom::Start(from)).await?;
    let mut text = Vec::new();
    file.take(TAIL).read_to_end(&mut text).await?;
    Ok(Bytes::from(text))
}

/// A file and the bytes that are appended to it, until the reader disconnects.
struct Followed {
    first: Option<Bytes>,
    next: More,
}

impl http_body::Body for Followed {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        this.next.as_mut().poll(cx).map(|(file, text, end)| {
            this.next = more(file, end);
            Some(Ok(Frame::data(text)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_whole_lines() {
        for (text, lines, expected) in [
            ("", 3, ""),
            ("one\ntwo\nthree\n", 2, "two\nthree\n"),
            ("one\ntwo\nthree", 2, "two\nthree"),
            ("one\n", 5, "one\n"),
            ("one\ntwo\n", 0, ""),
        ] {
            assert_eq!(last_lines(text.as_bytes(), lines), expected.as_bytes(), "{text:?} {lines}");
        }
    }

    #[tokio::test]
    async fn what_is_added_follows_and_a_file_moved_aside_is_no_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.log");
        assert_eq!(tail(&file, 10).await.unwrap(), (Bytes::new(), 0));
        std::fs::write(&file, "one\ntwo\n").unwrap();
        let (text, end) = tail(&file, 1).await.unwrap();
        assert_eq!((&text[..], end), (&b"two\n"[..], 8));
        std::fs::write(&file, "one\ntwo\nthree\n").unwrap();
        let (file, text, end) = more(file, end).await;
        assert_eq!((&text[..], end), (&b"three\n"[..], 14));
        std::fs::write(&file, "new\n").unwrap();
        let (file, text, end) = more(file, end).await;
        assert_eq!((&text[..], end), (&b"new\n"[..], 4));
        // The file is renamed while it is followed: no line between is lost, and the last lines reach into the renamed
        // file.
        std::fs::write(&file, "new\nlast\n").unwrap();
        std::fs::rename(&file, earlier_log(&file)).unwrap();
        std::fs::write(&file, "x\n").unwrap();
        let (file, text, end) = more(file, end).await;
        assert_eq!((&text[..], end), (&b"last\n"[..], 0));
        assert_eq!(&more(file.clone(), end).await.1[..], b"x\n");
        assert_eq!(&tail(&file, 2).await.unwrap().0[..], b"last\nx\n");
    }
}
