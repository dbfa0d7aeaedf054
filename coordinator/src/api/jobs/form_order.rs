//! Forms as bodies of jobs: what a route would refuse of a form is refused while the form is written to the disk, and
//! its file is never in memory.

use std::sync::Arc;

use axum::body::Bytes;
use futures_util::stream::unfold;
use model_boss_dialects::EDITS;
use model_boss_http::form::{FormBody, FormFiles};
use model_boss_jobs::BodyDigest;
use model_boss_protocol::{ApiError, ErrorCode, form_boundary};
use multer::{Field, Multipart};
use tokio::sync::mpsc;

use crate::api::inference::ahead::check_names;
use crate::api::route::Call;

/// Pieces of a body that were written and not read yet.
const WAITING: usize = 4;

/// The longest text of all fields of a form, and of their names.
const MOST_TEXT: usize = 1 << 20;

/// The way of a form's pieces to its reader.
pub(super) type FormPieces = mpsc::Sender<Bytes>;

/// A form that arrives.
pub(super) struct ArrivingForm {
    pieces: mpsc::Receiver<Bytes>,
    boundary: String,
}

impl ArrivingForm {
    /// A form of this content type; none of another type.
    pub(super) fn of(content_type: &str) -> Result<Option<(FormPieces, Self)>, ApiError> {
        let kind = content_type.split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("multipart/form-data") {
            return Ok(None);
        }
        let boundary = form_boundary(content_type).map_err(|error| refused(&error))?;
        let (sender, pieces) = mpsc::channel(WAITING);
        Ok(Some((sender, Self { pieces, boundary })))
    }

    /// The form without the content of its files, once it has come to its end, and the digest of its parts: each time
    /// that a client sends a form, it has another boundary.
    pub(super) async fn without_files(self) -> Result<(Bytes, BodyDigest), ApiError> {
        let Self { pieces, boundary } = self;
        let next = async |mut pieces: mpsc::Receiver<Bytes>| {
            pieces.recv().await.map(|piece| (Ok::<_, std::convert::Infallible>(piece), pieces))
        };
        let mut form = Multipart::new(Box::pin(unfold(pieces, next)), boundary.clone());
        let (mut short, mut digest) = (Vec::new(), BodyDigest::default());
        while let Some(field) = form.next_field().await.map_err(|error| refused(&error))? {
            add(&mut short, &mut digest, &boundary, field).await?;
        }
        short.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        Ok((short.into(), digest))
    }
}

/// Adds a part, of a file its head alone.
async fn add(
    short: &mut Vec<u8>,
    digest: &mut BodyDigest,
    boundary: &str,
    mut field: Field<'static>,
) -> Result<(), ApiError> {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    let name = field.name().unwrap_or_default().to_owned();
    let file = field.file_name().map(|file| format!("; filename=\"{}\"", quoted(file)));
    // Masks and pictures may come without a file's name.
    let is_file = file.is_some() || ["file", "image", "image[]", "mask"].contains(&name.as_str());
    let head = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"{}\"{}\r\n\r\n",
        quoted(&name),
        file.unwrap_or_default()
    );
    short.extend_from_slice(head.as_bytes());
    let head = format!("{name:?} {:?}", field.file_name());
    digest.add(format!("{} {head}", head.len()).as_bytes());
    let mut length = 0_u64;
    while let Some(piece) = field.chunk().await.map_err(|error| refused(&error))? {
        digest.add(&piece);
        length += piece.len() as u64;
        if !is_file {
            short.extend_from_slice(&piece);
        }
        if short.len() > MOST_TEXT {
            return Err(ApiError::invalid(name, format!("the form's fields have more than {MOST_TEXT} bytes of text")));
        }
    }
    digest.add(format!(" {length};").as_bytes());
    short.extend_from_slice(b"\r\n");
    Ok(())
}

/// Refuses a form at once, where its route would refuse its fields later. The form has no content of files. Returns the
/// name of the model that is asked.
pub(super) fn check_form(
    call: &Call,
    endpoint: &str,
    short: Bytes,
) -> impl Future<Output = Result<Option<String>, ApiError>> + Send + use<> {
    let (context, head, path) = (Arc::clone(&call.context), call.head(), endpoint.to_owned());
    let length = short.len();
    let files = if path == EDITS { FormFiles::PICTURES } else { FormFiles::SOUND };
    let check = move || {
        let (peeked, _) = FormBody::read(&short, &head, (files, context.limits.json()))?;
        check_names(&context, &path, peeked)
    };
    model_boss_http::offload::offload(length, check)
}

fn refused(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, format!("the form cannot be read: {error}"))
}
