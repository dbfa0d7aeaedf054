//! `/v1/files`, as OpenAI's API has them: uploads are written to the disk while they arrive.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use futures_util::stream::unfold;
use http::header::CONTENT_TYPE;
use model_boss_http::body::{BodyPieces, json};
use model_boss_http::path::parameter;
use model_boss_jobs::{DraftFile, FilePurpose, KeptKind, StoredUpload};
use model_boss_protocol::{ApiError, ByteCount, ErrorCode};
use multer::{Constraints, Field, Multipart, SizeLimit};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::task::spawn_blocking;

use super::content::content;
use super::order::{done, file_size};
use super::page::PageQuery;
use super::path::{NamedPath, opened};
use crate::api::route::Call;
use crate::jobs::{ArrivalRoom, Jobs, UploadWish, owner_of};

/// The most files of a page.
const MOST: usize = 10_000;
/// The part of a path before the id.
const ROOT: &str = "/files/";
/// The longest part of a form that is no file.
const LONGEST_FIELD: u64 = 4 << 10;
/// The longest name of a file, in characters.
const LONGEST_NAME: usize = 255;
/// The bytes around the file in a form.
const AROUND: u64 = 64 << 10;
/// The bytes that are written at once.
const PIECE: usize = 256 << 10;
/// The time for which a client may have a file kept, in seconds.
pub(super) const KEPT_SECONDS: RangeInclusive<u64> = 3_600..=30 * 86_400;

/// The parts of an upload.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "the type only describes")]
pub(crate) struct FileForm {
    /// The use: `batch`, `assistants`, `fine-tune`, `vision`, `user_data` or `evals`.
    purpose: String,
    /// The content.
    file: String,
}

/// A file.
#[derive(Serialize, JsonSchema)]
pub(crate) struct FileObject {
    id: String,
    /// Always `file`.
    object: &'static str,
    bytes: u64,
    created_at: u64,
    expires_at: Option<u64>,
    filename: String,
    purpose: &'static str,
    /// Always `processed`.
    status: &'static str,
}

/// A page of files.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ListedFiles {
    /// Always `list`.
    object: &'static str,
    data: Vec<FileObject>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

/// A file that was removed.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DeletedFile {
    id: String,
    object: &'static str,
    deleted: bool,
}

impl FileObject {
    fn of(upload: StoredUpload) -> Self {
        let StoredUpload { id, filename, purpose, bytes, created, expires, .. } = upload;
        Self {
            id,
            object: "file",
            bytes,
            created_at: created.whole_seconds(),
            expires_at: expires.map(|at| at.whole_seconds()),
            filename,
            purpose: purpose.as_str(),
            status: "processed",
        }
    }
}

/// `POST /v1/files`.
pub(crate) async fn upload(call: Call) -> Result<Response, ApiError> {
    let mut call = opened(call).await;
    let jobs = Arc::clone(&call.context.jobs);
    jobs.ready()?;
    let kind = call.request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let boundary = multer::parse_boundary(kind).map_err(|_| {
        let message = "a file is uploaded as multipart/form-data with the parts 'purpose' and 'file'";
        ApiError::new(ErrorCode::UnsupportedMediaType, message)
    })?;
    let owner = owner_of(&call.identity, call.client()?.as_str());
    let size = file_size(&jobs);
    let pieces = call.pieces(ByteCount(size.0.saturating_add(AROUND)))?;
    let form = UploadForm::read(&jobs, form(pieces, boundary, size), Jobs::new_file_name()?).await?;
    let UploadForm { id, filename, content, purpose, keep, room, .. } = form;
    let missing = |part: &'static str| ApiError::invalid(part, format!("the part '{part}' is missing"));
    let content = content.ok_or_else(|| missing("file"))?;
    let purpose = purpose.ok_or_else(|| missing("purpose"))?;
    let wish = UploadWish { id, owner, filename, purpose, keep };
    json(&FileObject::of(jobs.keep_upload(wish, content, room).await?))
}

/// The parts of a form, none of which is in memory as a whole if it is a file.
fn form(pieces: BodyPieces, boundary: String, size: ByteCount) -> Multipart<'static> {
    let next = async |mut pieces: BodyPieces| pieces.next().await.transpose().map(|piece| (piece, pieces));
    let limits = SizeLimit::new().per_field(LONGEST_FIELD).for_field("file", size.0);
    Multipart::with_constraints(Box::pin(unfold(pieces, next)), boundary, Constraints::new().size_limit(limits))
}

/// The parts of an upload that have come.
struct UploadForm {
    id: String,
    filename: String,
    content: Option<DraftFile>,
    purpose: Option<FilePurpose>,
    keep: Option<Duration>,
    room: ArrivalRoom,
}

impl UploadForm {
    async fn read(jobs: &Arc<Jobs>, mut form: Multipart<'static>, id: String) -> Result<Self, ApiError> {
        let room = jobs.arrival();
        let mut read = Self { id, filename: "upload".to_owned(), content: None, purpose: None, keep: None, room };
        while let Some(field) = form.next_field().await.map_err(unreadable)? {
            match field.name().unwrap_or_default() {
                "file" if read.content.is_some() => {
                    return Err(ApiError::invalid("file", "there are several parts 'file'; upload one at a time"));
                }
                "file" => read.take_file(jobs, field).await?,
                "purpose" => read.purpose = Some(purpose(&text(field).await?)?),
                "expires_after[seconds]" => read.keep = Some(kept(&text(field).await?)?),
                "expires_after[anchor]" => {
                    if text(field).await? != "created_at" {
                        return Err(ApiError::invalid("expires_after", "'anchor' must be created_at"));
                    }
                }
                other => {
                    let shown: String = other.chars().take(60).collect();
                    let message = format!("there is no part '{shown}' in an upload; there are 'purpose' and 'file'");
                    return Err(ApiError::invalid("file", message));
                }
            }
        }
        Ok(read)
    }

    async fn take_file(&mut self, jobs: &Arc<Jobs>, mut field: Field<'static>) -> Result<(), ApiError> {
        if let Some(name) = field.file_name() {
            let plain = name.chars().filter(|c| !c.is_control()).take(LONGEST_NAME).collect::<String>();
            self.filename = if plain.is_empty() { "upload".to_owned() } else { plain };
        }
        let mut draft = jobs.draft(KeptKind::Upload, self.id.clone()).await?;
        let mut gathered = Vec::new();
        loop {
            let piece = field.chunk().await.map_err(unreadable)?;
            if let Some(piece) = &piece {
                self.room.grow(piece.len() as u64)?;
                gathered.extend_from_slice(piece);
            }
            if gathered.len() >= PIECE || (piece.is_none() && !gathered.is_empty()) {
                let full = std::mem::take(&mut gathered);
                draft = done(spawn_blocking(move || draft.write(&full).map(|()| draft)).await)?;
            }
            if piece.is_none() {
                self.content = Some(draft);
                return Ok(());
            }
        }
    }
}

async fn text(field: Field<'static>) -> Result<String, ApiError> {
    field.text().await.map_err(unreadable)
}

fn purpose(text: &str) -> Result<FilePurpose, ApiError> {
    let known = FilePurpose::UPLOADS.iter().find(|(name, _)| *name == text);
    known.map(|(_, purpose)| *purpose).ok_or_else(|| {
        let names: Vec<&str> = FilePurpose::UPLOADS.iter().map(|(name, _)| *name).collect();
        ApiError::invalid("purpose", format!("'purpose' must be one of {}", names.join(", ")))
    })
}

fn kept(text: &str) -> Result<Duration, ApiError> {
    let seconds = text.trim().parse().ok().filter(|seconds| KEPT_SECONDS.contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| {
        let message =
            format!("'seconds' must be a whole number from {} to {}", KEPT_SECONDS.start(), KEPT_SECONDS.end());
        ApiError::invalid("expires_after", message)
    })
}

/// The error for a form that cannot be read. One that arose while the body was read passes through.
pub(super) fn unreadable(error: multer::Error) -> ApiError {
    match error {
        multer::Error::StreamReadFailed(inner) => match inner.downcast::<ApiError>() {
            Ok(inner) => *inner,
            Err(other) => ApiError::new(ErrorCode::InvalidRequest, format!("the form cannot be read: {other}")),
        },
        multer::Error::FieldSizeExceeded { limit, field_name } => {
            let name = field_name.unwrap_or_default();
            let message = format!("the part '{name}' is over the limit of {}", ByteCount(limit));
            ApiError::new(ErrorCode::RequestTooLarge, message)
        }
        other => ApiError::new(ErrorCode::InvalidRequest, format!("the form cannot be read: {other}")),
    }
}

/// `GET /v1/files`.
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let call = opened(call).await;
    let target = call.request.uri();
    let page = PageQuery::of(target, MOST)?;
    let wanted = parameter(target, "purpose");
    let mut all = call.context.jobs.uploads(&call.identity)?;
    all.retain(|upload| wanted.as_deref().is_none_or(|wanted| upload.purpose.as_str() == wanted));
    let (files, has_more) = page.cut(all, |upload| upload.id.as_str());
    let data: Vec<FileObject> = files.into_iter().map(FileObject::of).collect();
    json(&ListedFiles {
        object: "list",
        first_id: data.first().map(|file| file.id.clone()),
        last_id: data.last().map(|file| file.id.clone()),
        data,
        has_more,
    })
}

/// `GET /v1/files/ID` and `/v1/files/ID/content`.
pub(crate) async fn show(call: Call) -> Result<Response, ApiError> {
    let call = opened(call).await;
    let named = NamedPath::of(call.request.uri(), ROOT);
    let upload = call.context.jobs.upload(&call.identity, &named.id)?;
    match named.verb.as_str() {
        "" => json(&FileObject::of(upload)),
        "content" => {
            let (file, bytes) = call.context.jobs.open_file(KeptKind::Upload, &upload.id).await?;
            let kind =
                if upload.filename.ends_with(".jsonl") { "application/jsonl" } else { "application/octet-stream" };
            content(file, bytes, kind, call.request.headers(), Some(&upload.filename))
        }
        _ => Err(named.no_such_route("file")),
    }
}

/// `DELETE /v1/files/ID`.
pub(crate) async fn delete(call: Call) -> Result<Response, ApiError> {
    let call = opened(call).await;
    let named = NamedPath::of(call.request.uri(), ROOT);
    if !named.verb.is_empty() {
        return Err(named.no_such_route("file"));
    }
    call.context.jobs.delete_upload(&call.identity, &named.id).await?;
    json(&DeletedFile { id: named.id, object: "file", deleted: true })
}
