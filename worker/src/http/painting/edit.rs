//! A request for an edit: a form, or JSON. The fields of a form become those of JSON.

use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use model_boss_protocol::{ApiError, ErrorCode, FormPart, form_boundary, form_parts};
use serde_json::{Map, Value};

use super::fields::PictureFields;
use super::given_images::{EditImages, GivenImage, ImageField, ImageFields};
use crate::defaults::RequestDefaults;
use crate::http::fields::RequestFields;

/// The longest field of text in a form.
const LONGEST_TEXT: usize = 256 << 10;

/// Fields whose text is not read as a number or a truth value.
const TEXTS: [&str; 9] = [
    "prompt",
    "negative_prompt",
    "size",
    "scheduler",
    "response_format",
    "output_format",
    "quality",
    "background",
    "user",
];

/// The fields and the pictures of an edit.
pub(super) fn edit_of(
    headers: &HeaderMap,
    body: &Bytes,
    defaults: &RequestDefaults,
) -> Result<(PictureFields, EditImages), ApiError> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.trim_start().get(..10).is_some_and(|start| start.eq_ignore_ascii_case("multipart/")) {
        return of_form(kind, body, defaults);
    }
    let fields = RequestFields::read(body, Some(defaults))?;
    let mut images = Vec::new();
    for name in ["image", "images"] {
        images.extend(fields.get::<ImageFields>(name)?.map(ImageFields::into_images).unwrap_or_default());
    }
    let mask = fields.get::<ImageField>("mask")?.map(GivenImage::from);
    Ok((PictureFields::read(&fields)?, EditImages::of(images, mask)?))
}

fn of_form(kind: &str, body: &Bytes, defaults: &RequestDefaults) -> Result<(PictureFields, EditImages), ApiError> {
    let refused = |error: &dyn std::fmt::Display| ApiError::new(ErrorCode::InvalidRequest, error.to_string());
    let boundary = form_boundary(kind).map_err(|error| refused(&error))?;
    let parts = form_parts(body, &boundary).map_err(|error| refused(&error))?;
    let (mut json, mut images, mut masks) = (Map::new(), Vec::new(), Vec::new());
    for FormPart { name, file_name, content, .. } in parts {
        let plain = name.strip_suffix("[]").unwrap_or(&name);
        let file = match plain {
            "image" | "images" => Some(&mut images),
            "mask" => Some(&mut masks),
            _ if file_name.is_some() => {
                let name: String = name.escape_debug().take(60).collect();
                let message = format!("the form has a file '{name}'; files of an edit are named 'image' and 'mask'");
                return Err(ApiError::invalid(name, message));
            }
            _ => None,
        };
        if let Some(files) = file {
            files.push(given(body, content, file_name.is_some()));
            continue;
        }
        if content.len() > LONGEST_TEXT {
            return Err(ApiError::invalid(plain, format!("'{plain}' is longer than {LONGEST_TEXT} bytes")));
        }
        let text = std::str::from_utf8(&body[content])
            .map_err(|_| ApiError::invalid(plain, format!("'{plain}' is no UTF-8 text")))?;
        json.insert(plain.to_owned(), value(plain, text));
    }
    if masks.len() > 1 {
        return Err(ApiError::invalid("mask", format!("the form has {} masks; an edit has one", masks.len())));
    }
    let json = serde_json::to_vec(&json).map_err(|error| refused(&error))?;
    let fields = PictureFields::read(&RequestFields::read(&json, Some(defaults))?)?;
    Ok((fields, EditImages::of(images, masks.pop())?))
}

/// A file, or a URL in a field of text.
fn given(body: &Bytes, content: std::ops::Range<usize>, is_file: bool) -> GivenImage {
    let file = body.slice(content);
    match std::str::from_utf8(&file) {
        Ok(url) if !is_file && url.trim_start().get(..5).is_some_and(|start| start.eq_ignore_ascii_case("data:")) => {
            GivenImage::Url(url.to_owned())
        }
        _ => GivenImage::File(file),
    }
}

/// The text of a field as JSON has it. Empty fields are absent ones.
fn value(name: &str, text: &str) -> Value {
    if TEXTS.contains(&name) {
        return Value::from(text);
    }
    match text.trim() {
        "" => Value::Null,
        "True" => Value::Bool(true),
        "False" => Value::Bool(false),
        plain => serde_json::from_str(plain).unwrap_or_else(|_| Value::from(text)),
    }
}
