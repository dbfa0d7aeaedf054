//! The fields of a form, each read with its own type. Errors name the field. The manifest may set fields that the
//! request does not.

use std::collections::BTreeMap;
use std::str::FromStr;

use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use model_boss_protocol::{ApiError, FormPart, form_boundary, form_parts};

use crate::defaults::RequestDefaults;

/// The longest field of text.
const LONGEST_TEXT: usize = 64 << 10;

/// The fields of one form.
pub(super) struct SpeechFields<'a> {
    texts: BTreeMap<String, Vec<String>>,
    /// The places of files in the body.
    files: Vec<FormPart>,
    defaults: &'a RequestDefaults,
}

impl<'a> SpeechFields<'a> {
    pub(super) fn read(headers: &HeaderMap, body: &Bytes, defaults: &'a RequestDefaults) -> Result<Self, ApiError> {
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let refused = |error: &dyn std::fmt::Display| {
            ApiError::new(model_boss_protocol::ErrorCode::InvalidRequest, error.to_string())
        };
        let boundary = form_boundary(kind).map_err(|error| refused(&error))?;
        let parts = form_parts(body, &boundary).map_err(|error| refused(&error))?;
        let (mut texts, mut files) = (BTreeMap::<String, Vec<String>>::new(), Vec::new());
        for part in parts {
            if part.file_name.is_some() || part.name == "file" {
                files.push(part);
                continue;
            }
            let name = part.name.strip_suffix("[]").unwrap_or(&part.name).to_owned();
            let content = &body[part.content];
            if content.len() > LONGEST_TEXT {
                let message = format!("'{name}' is longer than {LONGEST_TEXT} bytes; a file needs a filename");
                return Err(ApiError::invalid(name, message));
            }
            let text = std::str::from_utf8(content)
                .map_err(|_| ApiError::invalid(name.clone(), format!("'{name}' is no UTF-8 text")))?;
            texts.entry(name).or_default().push(text.to_owned());
        }
        Ok(Self { texts, files, defaults })
    }

    /// The one file.
    pub(super) fn file(&self) -> Result<&FormPart, ApiError> {
        match self.files.as_slice() {
            [file] if file.name == "file" => Ok(file),
            [] => Err(ApiError::invalid("file", "'file' is missing: send the sound as a file of the form")),
            [other] => Err(ApiError::invalid(
                "file",
                format!("the form's file is named '{}'; it has to be 'file'", other.name),
            )),
            all => Err(ApiError::invalid("file", format!("the form has {} files; one is read at a time", all.len()))),
        }
    }

    /// A field's last text, or that of the manifest; none if it is empty.
    pub(super) fn text(&self, name: &'static str) -> Option<String> {
        let given = self.texts.get(name).and_then(|all| all.last()).cloned();
        let default = || {
            let raw = self.defaults.get(name)?.get();
            Some(serde_json::from_str::<String>(raw).unwrap_or_else(|_| raw.to_owned()))
        };
        given.or_else(default).filter(|text| !text.trim().is_empty())
    }

    /// All values of a field that may be given several times, or as a list of JSON.
    pub(super) fn list(&self, name: &'static str) -> Vec<String> {
        let given = self.texts.get(name).cloned();
        let all = given.or_else(|| self.text(name).map(|text| vec![text])).unwrap_or_default();
        let apart = |text: String| serde_json::from_str::<Vec<String>>(&text).unwrap_or_else(|_| vec![text]);
        all.into_iter().flat_map(apart).filter(|text| !text.trim().is_empty()).collect()
    }

    /// A value of a type that reads itself from text.
    pub(super) fn value<T: FromStr>(&self, name: &'static str, wanted: &str) -> Result<Option<T>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let shown: String = text.escape_debug().take(60).collect();
        let read = text.trim().parse().map(Some);
        read.map_err(|_| ApiError::invalid(name, format!("'{name}' is '{shown}'; it must be {wanted}")))
    }

    /// True or false.
    pub(super) fn flag(&self, name: &'static str) -> Result<Option<bool>, ApiError> {
        match self.text(name).map(|text| text.trim().to_ascii_lowercase()).as_deref() {
            None => Ok(None),
            Some("true" | "1" | "yes") => Ok(Some(true)),
            Some("false" | "0" | "no") => Ok(Some(false)),
            Some(_) => self.value::<bool>(name, "true or false"),
        }
    }
}
