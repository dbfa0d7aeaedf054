//! Errors of requests that hyper cannot parse. hyper answers them itself, without a body; this module adds a body in
//! the shape of every other error.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use model_boss_protocol::{ApiError, ErrorCode, ErrorSource};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection on which hyper's own errors get a body.
pub(crate) struct BareErrors<S> {
    stream: S,
    header_size: usize,
    /// The unsent rest of an answer that replaces an error of hyper's.
    instead: Vec<u8>,
}

impl<S> BareErrors<S> {
    /// Wraps `stream`; `header_size` is the longest request head, for the error's text.
    pub(crate) const fn on(stream: S, header_size: usize) -> Self {
        Self { stream, header_size, instead: Vec::new() }
    }

    /// The replacement for these bytes, if they are an error of hyper's. The coordinator's own errors always have a
    /// body already.
    fn worded(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.starts_with("HTTP/1.1 4"))?;
        let head = text.strip_suffix("\r\n\r\n")?;
        if head.contains("\r\n\r\n") || !head.to_ascii_lowercase().contains("\r\ncontent-length: 0") {
            return None;
        }
        let reason = head.lines().next()?.strip_prefix("HTTP/1.1 ")?;
        let status: u16 = reason.get(..3)?.parse().ok()?;
        let error = match status {
            431 => {
                let message = format!(
                    "the head of the request is over the limit of {} bytes; send fewer or shorter headers (cookies?), or \
                     raise limits.header_size",
                    self.header_size
                );
                ApiError::new(ErrorCode::RequestTooLarge, message)
            }
            414 => ApiError::new(ErrorCode::RequestTooLarge, "the target of the request is too long"),
            400 => ApiError::new(ErrorCode::InvalidRequest, "the request is not HTTP/1.1; for HTTPS a proxy is needed"),
            _ => return None,
        };
        let body = error.with_status(status).body(ErrorSource::Coordinator).to_json();
        let head = format!(
            "HTTP/1.1 {reason}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        Some([head, body].concat().into_bytes())
    }
}

impl<S: AsyncWrite + Unpin> BareErrors<S> {
    fn poll_instead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.instead.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.instead))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.instead.drain(..written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for BareErrors<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BareErrors<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_instead(cx))?;
        match self.worded(bytes) {
            Some(instead) => {
                self.instead = instead;
                Poll::Ready(Ok(bytes.len()))
            }
            None => Pin::new(&mut self.stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_instead(cx))?;
        match bytes.first().and_then(|first| Some((first.len(), self.worded(first)?))) {
            Some((length, instead)) => {
                self.instead = instead;
                Poll::Ready(Ok(length))
            }
            None => Pin::new(&mut self.stream).poll_write_vectored(cx, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    /// The complete answer to these bytes, from a server that answers each request with 404.
    async fn answer(request: &[u8]) -> String {
        let (mut client, server) = duplex(1 << 20);
        let service = service_fn(async |_| {
            Ok::<_, hyper::Error>(http::Response::builder().status(404).body(Body::from("own")).unwrap())
        });
        let stream = TokioIo::new(BareErrors::on(server, 16_384));
        let served = tokio::spawn(http1::Builder::new().max_header_size(16_384).serve_connection(stream, service));
        client.write_all(request).await.unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        drop(served);
        text
    }

    #[tokio::test]
    async fn every_error_has_a_body() {
        let long = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "x".repeat(100_000));
        for (request, status, word) in [
            (long.as_bytes(), "431", "limits.header_size"),
            (b"good day, how are you?\r\n\r\n", "400", "invalid_request"),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", "400", "HTTPS"),
            (b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", "404", "own"),
        ] {
            let answer = answer(request).await;
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status}")) && body.contains(word), "{answer}");
            assert!(head.contains(&format!("content-length: {}", body.len())), "{answer}");
        }
    }
}
