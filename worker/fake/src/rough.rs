//! Invalid answers: none, wrong bytes, and broken ones.

use model_boss_fake_worker::behaviour::{Malformed, RawAnswer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) async fn answer_badly(mut stream: TcpStream, malformed: Malformed) {
    let bytes: &[u8] = match malformed {
        Malformed::NotHttp => b"good day, this is not HTTP\r\n\r\n",
        Malformed::CutBody => {
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{\"id\":"
        }
        Malformed::Hangup | Malformed::NotJson => b"",
    };
    // The request is read first, so that the answer arrives before the connection closes.
    let mut request = vec![0; 1 << 16];
    _ = tokio::io::AsyncReadExt::read(&mut stream, &mut request).await;
    _ = stream.write_all(bytes).await;
    _ = stream.shutdown().await;
}

pub(crate) async fn answer_raw(mut stream: TcpStream, raw: &RawAnswer) {
    let answer = async {
        take_request(&mut stream).await?;
        stream.write_all(raw.first.as_bytes()).await?;
        for _ in 0..raw.times {
            stream.write_all(raw.piece.as_bytes()).await?;
        }
        stream.write_all(raw.last.as_bytes()).await?;
        stream.shutdown().await
    };
    // An error means that the client disconnected within the answer.
    _ = answer.await;
}

/// Reads a request with its body: an answer on a connection with unread bytes would be lost when it closes.
pub(crate) async fn take_request(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut request = Vec::new();
    loop {
        if let Some(end) = request.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            if request.len() >= end + 4 + length.unwrap_or(0) {
                return Ok(());
            }
        }
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
}
