//! Bodies of requests and of JSON answers.
//!
//! [`Unread`] is the only access to a request's body: it reads the body completely into a [`RequestBody`], which counts
//! against the memory budget. The content is accessible only by [`RequestBody::open`], which moves work on large bodies
//! off the thread that serves sockets. An open body parses into a value of a type, or into an object whose size was
//! bounded first.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::{Buf, Bytes};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body::Body as _;
use http_body_util::BodyExt;
use model_boss_config::JsonLimits;
use model_boss_protocol::{ApiError, ByteCount, ErrorCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout};

use crate::gathered::Gathered;
use crate::json;
use crate::memory::{Admission, HeldMemory};
use crate::offload::offload;

/// UTF-8's byte order mark.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// The slowest average rate of a client, in bytes a second. Slower clients are refused.
const LEAST_RATE: u64 = 8 << 10;
/// The most bytes of a refused body that are read and discarded, so that the client reads the refusal.
const MAX_DISCARDED: u64 = 64 << 20;
const DISCARD_LIMIT: Duration = Duration::from_secs(10);

/// A request body that has not been read.
pub struct Unread(Body);

/// A body that is read piece by piece, for a file. No more than one piece of it is in memory.
pub struct BodyPieces {
    body: Body,
    limits: BodyLimits,
    began: Instant,
    so_far: u64,
}

/// A body that was read whole.
pub struct RequestBody {
    bytes: Bytes,
    memory: HeldMemory,
    limits: JsonLimits,
}

/// The longest body that is parsed for a log beside its use, in bytes.
const SHORT: usize = 16 << 10;

/// A body whose content may be parsed on the current thread: a large one is open only on a thread of its own.
pub struct OpenBody(RequestBody);

/// Limits on the size, speed and content of a body.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// The largest body.
    pub size: ByteCount,
    /// The longest pause of a client.
    pub patience: Duration,
    /// Limits on the nesting and size of the body's JSON.
    pub json: JsonLimits,
}

impl Unread {
    /// Wraps the body of an incoming request.
    pub const fn new(body: Body) -> Self {
        Self(body)
    }

    /// Takes the body out; a second call gives an empty one.
    pub fn take(&mut self) -> Self {
        Self(std::mem::replace(&mut self.0, Body::empty()))
    }

    /// Reads the whole body. Memory is held for what has arrived, not for the announced length. A body whose announced
    /// length is too large is not read at all.
    pub async fn read(mut self, limits: BodyLimits, memory: HeldMemory) -> Result<RequestBody, ApiError> {
        let read = collect(&mut self.0, limits, memory).await;
        if read.is_err() && !self.0.is_end_stream() {
            tokio::spawn(discard(self.0));
        }
        read.map(|(mut bytes, memory)| {
            // Some systems' editors and shells put a byte order mark in front of every text.
            if bytes.starts_with(BYTE_ORDER_MARK) {
                bytes.advance(BYTE_ORDER_MARK.len());
            }
            RequestBody { bytes, memory, limits: limits.json }
        })
    }
}

impl Unread {
    /// Reads the body piece by piece, within the same limits of size and speed. A body whose announced length is too
    /// large is not read at all.
    pub fn pieces(self, limits: BodyLimits) -> Result<BodyPieces, ApiError> {
        if self.0.size_hint().lower() > limits.size.0 {
            tokio::spawn(discard(self.0));
            return Err(too_large(limits.size));
        }
        Ok(BodyPieces { body: self.0, limits, began: Instant::now(), so_far: 0 })
    }
}

impl BodyPieces {
    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            let frame = timeout(self.limits.patience, self.body.frame()).await.map_err(|_| too_slow())?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|_| ApiError::new(ErrorCode::InvalidRequest, "the body ended early"))?;
            let Ok(data) = frame.into_data() else { continue };
            self.so_far = self.so_far.saturating_add(data.len() as u64);
            if self.so_far > self.limits.size.0 {
                return Err(too_large(self.limits.size));
            }
            let patience = self.limits.patience.saturating_add(Duration::from_secs(self.so_far / LEAST_RATE));
            if self.began.elapsed() > patience {
                return Err(too_slow());
            }
            if !data.is_empty() {
                return Ok(Some(data));
            }
        }
    }
}

impl Drop for BodyPieces {
    fn drop(&mut self) {
        let rest = std::mem::replace(&mut self.body, Body::empty());
        if !rest.is_end_stream() && tokio::runtime::Handle::try_current().is_ok() {
            tokio::spawn(discard(rest));
        }
    }
}

fn too_large(limit: ByteCount) -> ApiError {
    ApiError::new(ErrorCode::RequestTooLarge, format!("the body is over the limit of {limit}"))
}

fn too_slow() -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, "the rest of the body did not come in time")
}

async fn collect(body: &mut Body, limits: BodyLimits, mut memory: HeldMemory) -> Result<(Bytes, HeldMemory), ApiError> {
    if body.size_hint().lower() > limits.size.0 {
        return Err(too_large(limits.size));
    }
    let began = Instant::now();
    let most = body.size_hint().upper().unwrap_or(u64::MAX).min(limits.size.0);
    let mut gathered = Gathered::new(most);
    while let Some(frame) = timeout(limits.patience, body.frame()).await.map_err(|_| too_slow())? {
        let frame = frame.map_err(|_| ApiError::new(ErrorCode::InvalidRequest, "the body ended early"))?;
        let Ok(data) = frame.into_data() else { continue };
        let so_far = (gathered.size() + data.len()) as u64;
        if so_far > limits.size.0 {
            return Err(too_large(limits.size));
        }
        if began.elapsed() > limits.patience.saturating_add(Duration::from_secs(so_far / LEAST_RATE)) {
            return Err(too_slow());
        }
        memory.grow(data.len(), Admission::AtDoor)?;
        gathered.add(data);
    }
    Ok((gathered.whole(), memory))
}

/// Reads the rest and discards it. A connection that closes while its client still sends never delivers the answer.
async fn discard(mut body: Body) {
    let rest = async {
        let mut discarded = 0;
        while let Some(Ok(frame)) = body.frame().await {
            discarded += frame.data_ref().map_or(0, Bytes::len) as u64;
            if discarded > MAX_DISCARDED {
                return;
            }
        }
    };
    // A body that does not end in time is no error.
    _ = timeout(DISCARD_LIMIT, rest).await;
}

impl RequestBody {
    /// The bytes of a body that is short enough to be parsed twice.
    pub fn short(&self) -> Option<&[u8]> {
        (self.bytes.len() <= SHORT).then_some(&self.bytes)
    }

    /// Whether the body is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The length in bytes.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Runs work on the open body, away from the thread that serves sockets when the body is large.
    pub async fn open<T: Send + 'static>(
        self,
        look: impl FnOnce(OpenBody) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        offload(self.bytes.len(), move || look(OpenBody(self))).await
    }

    /// Parses the body; an error names the field.
    pub async fn parse<T: DeserializeOwned + Send + 'static>(self) -> Result<T, ApiError> {
        self.open(|mut body| body.parse()).await
    }

    /// Parses the body; an empty one gives the default.
    pub async fn parse_or_default<T: DeserializeOwned + Default + Send + 'static>(self) -> Result<T, ApiError> {
        if self.is_empty() { Ok(T::default()) } else { self.parse().await }
    }

    /// The bytes, which hold their memory until they are dropped.
    pub fn into_bytes(self) -> Bytes {
        self.memory.keep(self.bytes)
    }
}

impl OpenBody {
    /// The content of the body.
    pub fn bytes(&self) -> &Bytes {
        &self.0.bytes
    }

    /// The limits on the body's JSON.
    pub fn limits(&self) -> JsonLimits {
        self.0.limits
    }

    /// Parses the body as an object. The object's memory stays held until the body gets another content.
    pub fn object(&mut self) -> Result<Map<String, Value>, ApiError> {
        let RequestBody { bytes, memory, limits } = &mut self.0;
        Ok(json::object(bytes, *limits, memory, Admission::AtDoor)?)
    }

    /// Parses another text for use beside the body. Its memory is held with the body's.
    pub fn beside(&mut self, text: &[u8]) -> Result<Value, ApiError> {
        let RequestBody { memory, limits, .. } = &mut self.0;
        json::make_room(text, *limits, memory, Admission::AtDoor)?;
        serde_json::from_slice(text)
            .map_err(|error| ApiError::new(ErrorCode::Internal, format!("a stored text cannot be read: {error}")))
    }

    /// Replaces the content; `more` is the most bytes by which it grows.
    pub fn rewrite(
        &mut self,
        more: usize,
        write: impl FnOnce(&Bytes) -> Result<Bytes, ApiError>,
    ) -> Result<(), ApiError> {
        self.0.memory.grow(self.0.bytes.len() + more, Admission::AtDoor)?;
        let bytes = write(&self.0.bytes)?;
        self.replace(bytes);
        Ok(())
    }

    /// Replaces the content by one made of [`Self::object`], and releases the object's memory.
    pub fn replace(&mut self, bytes: impl Into<Bytes>) {
        self.0.bytes = bytes.into();
        self.0.memory.shrink_to(self.0.bytes.len());
    }

    /// The body with its current content.
    pub fn close(self) -> RequestBody {
        self.0
    }

    fn parse<T: DeserializeOwned>(&mut self) -> Result<T, ApiError> {
        let RequestBody { bytes, memory, limits } = &mut self.0;
        json::make_room(bytes, *limits, memory, Admission::AtDoor)?;
        json::read_object(bytes, "the body")
    }
}

/// A value as a JSON answer.
pub fn json(value: &impl Serialize) -> Result<Response, ApiError> {
    json_with(StatusCode::OK, value)
}

/// A value as a JSON answer with a status.
pub fn json_with(status: StatusCode, value: &impl Serialize) -> Result<Response, ApiError> {
    let text = serde_json::to_vec(value)
        .map_err(|error| ApiError::new(ErrorCode::Internal, format!("the answer cannot be written: {error}")))?;
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
