//! Bodies of `multipart/form-data`: the fields that scheduling needs are read, and the file stays where it is. The form
//! that goes on has the same file, and its other fields without model-boss's own.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use model_boss_config::JsonLimits;
use model_boss_protocol::{ApiError, ErrorCode, FormPart, form_boundary, form_parts};
use serde_json::{Map, Value};

use crate::peek::{Peeked, is_own_field, peek};
use crate::upstream::Outgoing;

/// The longest field of text.
const LONGEST_TEXT: usize = 64 << 10;

/// All fields of text together.
const MOST_TEXT: usize = 256 << 10;

/// A form that is forwarded.
#[derive(Clone, Debug)]
pub struct FormBody {
    boundary: String,
    content_type: HeaderValue,
    /// Its parts of text, written anew, without the model.
    texts: BytesMut,
    /// The names of these.
    names: Vec<String>,
    /// The file's headers.
    file_head: Vec<u8>,
    /// The place of the file in the body.
    file: std::ops::Range<usize>,
}

impl FormBody {
    /// Reads a form and what scheduling needs of it.
    pub fn read(body: &Bytes, head: &Parts, limits: JsonLimits) -> Result<(Peeked, Self), ApiError> {
        let kind = head.headers.get(CONTENT_TYPE).cloned().unwrap_or(HeaderValue::from_static(""));
        let refused = |error: &dyn std::fmt::Display| ApiError::new(ErrorCode::InvalidRequest, error.to_string());
        let boundary = form_boundary(kind.to_str().unwrap_or_default()).map_err(|error| refused(&error))?;
        let parts = form_parts(body, &boundary).map_err(|error| refused(&error))?;
        let (files, texts): (Vec<FormPart>, Vec<FormPart>) =
            parts.into_iter().partition(|part| part.file_name.is_some() || part.name == "file");
        let file = match files.as_slice() {
            [file] if file.name == "file" => file,
            [] => return Err(ApiError::invalid("file", "'file' is missing: send the sound as a file of the form")),
            [file] => {
                let message = format!("the form's file is named '{}'; it has to be 'file'", file.name.escape_debug());
                return Err(ApiError::invalid("file", message));
            }
            all => {
                let message = format!("the form has {} files; one is read at a time", all.len());
                return Err(ApiError::invalid("file", message));
            }
        };
        let mut form = Self {
            file_head: part_head(&boundary, "file", file.file_name.as_deref()),
            file: file.content.clone(),
            boundary,
            content_type: kind,
            texts: BytesMut::new(),
            names: Vec::new(),
        };
        let mut own = Map::new();
        for part in texts {
            let content = &body[part.content];
            if content.len() > LONGEST_TEXT || form.texts.len() > MOST_TEXT {
                let message = format!("'{}' is longer than {LONGEST_TEXT} bytes", part.name.escape_debug());
                return Err(ApiError::invalid(part.name, message));
            }
            let text = std::str::from_utf8(content)
                .map_err(|_| ApiError::invalid(part.name.clone(), format!("'{}' is no UTF-8 text", part.name)))?;
            if part.name == "model" {
                own.insert(part.name, Value::from(text));
                continue;
            }
            if is_own_field(&part.name) {
                // Numbers and truth values are text in a form.
                let plain = serde_json::from_str::<Value>(text).ok();
                let plain = plain.filter(|value| value.is_number() || value.is_boolean());
                own.insert(part.name, plain.unwrap_or_else(|| Value::from(text)));
                continue;
            }
            if part.name == "stream" {
                let told = match text.trim().to_ascii_lowercase().as_str() {
                    "true" | "1" | "yes" => true,
                    "false" | "0" | "no" | "" => false,
                    _ => return Err(ApiError::invalid("stream", "'stream' must be true or false")),
                };
                own.insert(part.name.clone(), Value::from(told));
            }
            form.add(&part.name, text);
        }
        let json = Value::Object(own).to_string();
        Ok((peek(json.as_bytes(), head, limits)?, form))
    }

    /// Adds fields that the client left out.
    pub fn add_defaults(&mut self, defaults: &BTreeMap<String, Value>) {
        for (name, value) in defaults {
            if self.names.iter().any(|own| own.strip_suffix("[]").unwrap_or(own) == name) {
                continue;
            }
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            self.add(name, &text);
        }
    }

    fn add(&mut self, name: &str, text: &str) {
        self.texts.extend_from_slice(&part_head(&self.boundary, name, None));
        self.texts.extend_from_slice(text.as_bytes());
        self.texts.extend_from_slice(b"\r\n");
        self.names.push(name.to_owned());
    }

    /// The place of the file in the body that was read.
    pub fn file(&self) -> std::ops::Range<usize> {
        self.file.clone()
    }

    /// The content type, with the boundary.
    pub fn content_type(&self) -> HeaderValue {
        self.content_type.clone()
    }

    /// The form for this model, with its file.
    pub fn for_model(&self, model: &str, file: Bytes) -> Outgoing {
        let mut first = part_head(&self.boundary, "model", None);
        first.extend_from_slice(model.as_bytes());
        first.extend_from_slice(b"\r\n");
        first.extend_from_slice(&self.texts);
        first.extend_from_slice(&self.file_head);
        Outgoing::around(Bytes::from(first), file, Bytes::from(format!("\r\n--{}--\r\n", self.boundary)))
    }
}

/// The delimiter and the headers of a part.
fn part_head(boundary: &str, name: &str, file_name: Option<&str>) -> Vec<u8> {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    let file = file_name.map_or_else(String::new, |file| {
        format!("; filename=\"{}\"\r\nContent-Type: application/octet-stream", quoted(file))
    });
    format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{}\"{file}\r\n\r\n", quoted(name)).into_bytes()
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http_body_util::BodyExt;

    use super::*;

    const FORM: &str = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n--b\r\n\
        Content-Disposition: form-data; name=\"model\"\r\n\r\nown\r\n--b\r\nContent-Disposition: form-data; name=\"x_priority\"\r\n\
        \r\n3\r\n--b\r\nContent-Disposition: form-data; name=\"stream\"\r\n\r\ntrue\r\n--b\r\nContent-Disposition: form-data; \
        name=\"timestamp_granularities[]\"\r\n\r\nword\r\n--b--\r\n";

    fn read(form: &str) -> Result<(Peeked, FormBody), ApiError> {
        let request = Request::builder().header(CONTENT_TYPE, "multipart/form-data; boundary=b").body(()).unwrap();
        FormBody::read(&Bytes::from(form.to_owned()), &request.into_parts().0, JsonLimits { depth: 64, values: 1_000 })
    }

    #[tokio::test]
    async fn rc_28_a_form_goes_on_with_its_file_and_without_our_fields() {
        let (peeked, mut form) = read(FORM).unwrap();
        assert_eq!((peeked.model.as_deref(), peeked.stream), (Some("own"), true));
        assert_eq!(peeked.priority.map(model_boss_protocol::Priority::number), Some(3));
        assert_eq!(&FORM[form.file()], "RIFF");
        let defaults = [("temperature", Value::from(0.2)), ("timestamp_granularities", Value::from("segment"))];
        form.add_defaults(&defaults.map(|(name, value)| (name.to_owned(), value)).into_iter().collect());
        let sent = form.for_model("m\"1", Bytes::from_static(b"RIFF")).collect().await.unwrap().to_bytes();
        let parts = form_parts(&sent, "b").unwrap();
        let told: Vec<(&str, &str)> = parts
            .iter()
            .map(|part| (part.name.as_str(), std::str::from_utf8(&sent[part.content.clone()]).unwrap()))
            .collect();
        let expected = [
            ("model", "m\"1"),
            ("stream", "true"),
            ("timestamp_granularities[]", "word"),
            ("temperature", "0.2"),
            ("file", "RIFF"),
        ];
        assert_eq!(told, expected);
        assert_eq!(parts[4].file_name.as_deref(), Some("a.wav"));
    }

    #[test]
    fn rc_28_a_form_without_one_file_is_refused_with_its_field() {
        let field = |form: &str| read(form).unwrap_err().param;
        assert_eq!(
            field(&FORM.replace("name=\"file\"; filename=\"a.wav\"", "name=\"sound\"")).as_deref(),
            Some("file")
        );
        assert_eq!(field(&FORM.replace("name=\"file\"", "name=\"sound\"")).as_deref(), Some("file"));
        assert_eq!(field(&FORM.replace("\r\ntrue\r\n", "\r\nperhaps\r\n")).as_deref(), Some("stream"));
        assert_eq!(field(&FORM[..60]), None);
    }
}
