//! Bodies of `multipart/form-data`: the fields that scheduling needs are read, and files stay where they are. The form
//! that goes on has the same files, and its other fields without model-boss's own.

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

/// The files that the forms of a route have.
#[derive(Clone, Copy, Debug)]
pub struct FormFiles {
    /// The name of a file that has to be there.
    first: &'static str,
    /// The names of others.
    others: &'static [&'static str],
    /// The most files.
    most: usize,
    /// The content of the first one, in words.
    what: &'static str,
}

impl FormFiles {
    /// One file of sound.
    pub const SOUND: Self = Self { first: "file", others: &[], most: 1, what: "the sound" };

    /// Pictures, and a mask.
    pub const PICTURES: Self = Self { first: "image", others: &["mask"], most: 17, what: "the picture" };

    /// Whether a part is a file: one with a file's name, or with a name that files have.
    fn is_file(self, part: &FormPart) -> bool {
        part.file_name.is_some() || self.knows(&part.name)
    }

    fn knows(self, name: &str) -> bool {
        let plain = name.strip_suffix("[]").unwrap_or(name);
        plain == self.first || self.others.contains(&plain)
    }

    fn check(self, files: &[FormPart]) -> Result<(), ApiError> {
        let (first, what) = (self.first, self.what);
        let known = || [self.first].iter().chain(self.others).map(|name| format!("'{name}'")).collect::<Vec<_>>();
        if let Some(file) = files.iter().find(|file| !self.knows(&file.name)) {
            let (name, names) = (file.name.escape_debug(), known().join(" or "));
            let message = format!("the form's file is named '{name}'; it has to be {names}");
            return Err(ApiError::invalid(first, message));
        }
        if !files.iter().any(|file| file.name.strip_suffix("[]").unwrap_or(&file.name) == first) {
            let message = format!("'{first}' is missing: send {what} as a file of the form");
            return Err(ApiError::invalid(first, message));
        }
        if files.len() > self.most {
            let most =
                if self.most == 1 { "one is read at a time".to_owned() } else { format!("it may have {}", self.most) };
            return Err(ApiError::invalid(first, format!("the form has {} files; {most}", files.len())));
        }
        Ok(())
    }
}

/// A file of a form that is forwarded.
#[derive(Clone, Debug)]
struct FormFile {
    /// Its delimiter and headers.
    head: Vec<u8>,
    /// Its place in the body.
    content: std::ops::Range<usize>,
}

/// A form that is forwarded.
#[derive(Clone, Debug)]
pub struct FormBody {
    boundary: String,
    content_type: HeaderValue,
    /// Its parts of text, written anew, without the model.
    texts: BytesMut,
    /// The names of these.
    names: Vec<String>,
    files: Vec<FormFile>,
}

impl FormBody {
    /// Reads a form and what scheduling needs of it.
    pub fn read(
        body: &Bytes,
        head: &Parts,
        (rules, limits): (FormFiles, JsonLimits),
    ) -> Result<(Peeked, Self), ApiError> {
        let kind = head.headers.get(CONTENT_TYPE).cloned().unwrap_or(HeaderValue::from_static(""));
        let refused = |error: &dyn std::fmt::Display| ApiError::new(ErrorCode::InvalidRequest, error.to_string());
        let boundary = form_boundary(kind.to_str().unwrap_or_default()).map_err(|error| refused(&error))?;
        let parts = form_parts(body, &boundary).map_err(|error| refused(&error))?;
        let (files, texts): (Vec<FormPart>, Vec<FormPart>) = parts.into_iter().partition(|part| rules.is_file(part));
        rules.check(&files)?;
        let file = |file: &FormPart| FormFile {
            head: part_head(&boundary, &file.name, file.file_name.as_deref()),
            content: file.content.clone(),
        };
        let mut form = Self {
            files: files.iter().map(file).collect(),
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

    /// The content type, with the boundary.
    pub fn content_type(&self) -> HeaderValue {
        self.content_type.clone()
    }

    /// The form for this model, with its files of the body that was read.
    pub fn for_model(&self, model: &str, body: &Bytes) -> Outgoing {
        let mut first = part_head(&self.boundary, "model", None);
        first.extend_from_slice(model.as_bytes());
        first.extend_from_slice(b"\r\n");
        first.extend_from_slice(&self.texts);
        let mut parts = vec![Bytes::from(first)];
        for FormFile { head, content } in &self.files {
            // The body is the one that was read, unless a caller mixed two up.
            let content = if content.end <= body.len() { body.slice(content.clone()) } else { Bytes::new() };
            parts.extend([Bytes::from(head.clone()), content, Bytes::from_static(b"\r\n")]);
        }
        parts.push(Bytes::from(format!("--{}--\r\n", self.boundary)));
        Outgoing::of_parts(parts)
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
        let limits = JsonLimits { depth: 64, values: 1_000 };
        FormBody::read(&Bytes::from(form.to_owned()), &request.into_parts().0, (FormFiles::SOUND, limits))
    }

    #[tokio::test]
    async fn rc_28_a_form_goes_on_with_its_file_and_without_our_fields() {
        let (peeked, mut form) = read(FORM).unwrap();
        assert_eq!((peeked.model.as_deref(), peeked.stream), (Some("own"), true));
        assert_eq!(peeked.priority.map(model_boss_protocol::Priority::number), Some(3));
        let defaults = [("temperature", Value::from(0.2)), ("timestamp_granularities", Value::from("segment"))];
        form.add_defaults(&defaults.map(|(name, value)| (name.to_owned(), value)).into_iter().collect());
        let sent = form.for_model("m\"1", &Bytes::from_static(FORM.as_bytes())).collect().await.unwrap().to_bytes();
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

    #[tokio::test]
    async fn rc_25_a_form_with_pictures_goes_on_with_all_of_them() {
        let part = |name: &str, content: &str| {
            format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"a.png\"\r\n\r\n{content}\r\n")
        };
        let read = |form: &str| {
            let request = Request::builder().header(CONTENT_TYPE, "multipart/form-data; boundary=b").body(()).unwrap();
            let limits = (FormFiles::PICTURES, JsonLimits { depth: 64, values: 1_000 });
            FormBody::read(&Bytes::from(form.to_owned()), &request.into_parts().0, limits)
        };
        let form =
            [part("image[]", "one"), part("mask", "two"), part("image[]", "three"), "--b--\r\n".to_owned()].concat();
        let (_, body) = read(&form).unwrap();
        let sent = body.for_model("m", &Bytes::from(form.clone())).collect().await.unwrap().to_bytes();
        let parts = form_parts(&sent, "b").unwrap();
        let told: Vec<(&str, &[u8])> =
            parts.iter().map(|part| (part.name.as_str(), &sent[part.content.clone()])).collect();
        let expected: [(&str, &[u8]); 4] =
            [("model", b"m"), ("image[]", b"one"), ("mask", b"two"), ("image[]", b"three")];
        assert_eq!(told, expected);
        let refused = |form: String| read(&form).unwrap_err();
        let without = refused(part("mask", "two") + "--b--\r\n");
        assert!(without.param.as_deref() == Some("image") && without.message.contains("missing"), "{without:?}");
        let other = refused(part("image", "one") + &part("sound", "two") + "--b--\r\n");
        assert!(other.message.contains("'image' or 'mask'"), "{other:?}");
        assert!(refused(part("image", "x").repeat(18) + "--b--\r\n").message.contains("18 files"));
    }
}
