//! Answers of the Messages API for clients of the Messages API: only the model's name is changed.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::token_count::MessageTokens;
use crate::error::DialectError;
use crate::sse::{self, SseItem, SseReader};
use crate::{Reshape, nonsense};

/// Passes an answer on under the client's name of the model, and counts its tokens.
pub struct PassedAnswer {
    model: String,
    reader: SseReader,
    tokens: MessageTokens,
}

/// The fields of a whole answer that are read. All others keep their bytes.
#[derive(Deserialize)]
struct PassedFields<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(default)]
    usage: Value,
}

#[derive(Deserialize)]
struct PassedStart<'a> {
    #[serde(borrow)]
    message: PassedFields<'a>,
}

impl PassedAnswer {
    /// Prepares for an answer whose model the client calls `model`. An empty name leaves the provider's.
    pub fn new(model: String) -> Self {
        Self { model, reader: SseReader::default(), tokens: MessageTokens::default() }
    }

    /// The text with the client's name in place of `model`, which is a part of it.
    fn renamed<'a>(&self, text: &'a str, model: Option<&RawValue>) -> Cow<'a, str> {
        let Some(model) = model.filter(|_| !self.model.is_empty()) else { return Cow::Borrowed(text) };
        let begin = (model.get().as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
        let end = begin.saturating_add(model.get().len());
        match (text.get(..begin), text.get(end..)) {
            (Some(before), Some(behind)) => Cow::Owned(format!("{before}{}{behind}", Value::from(self.model.as_str()))),
            _ => Cow::Borrowed(text),
        }
    }

    fn event(&mut self, name: &str, data: &str, out: &mut Vec<u8>) {
        let event: Value = serde_json::from_str(data).unwrap_or_default();
        let kind = event["type"].as_str().unwrap_or(name);
        self.tokens.event(kind, &event);
        let start = (kind == "message_start").then(|| serde_json::from_str::<PassedStart<'_>>(data).ok()).flatten();
        let data = self.renamed(data, start.and_then(|start| start.message.model));
        sse::passed(out, kind, &data);
    }
}

impl Reshape for PassedAnswer {
    fn whole(&mut self, _: u16, body: &Bytes) -> Result<Bytes, DialectError> {
        let text = std::str::from_utf8(body).map_err(nonsense)?;
        let fields: PassedFields<'_> = serde_json::from_str(text).map_err(nonsense)?;
        self.tokens.usage(&fields.usage);
        Ok(match self.renamed(text, fields.model) {
            Cow::Borrowed(_) => body.clone(),
            Cow::Owned(renamed) => renamed.into(),
        })
    }

    fn is_document(&self) -> bool {
        false
    }

    fn piece(&mut self, bytes: &[u8]) -> Bytes {
        let mut out = Vec::new();
        for item in self.reader.push(bytes) {
            match item {
                SseItem::Event { name, data } => self.event(&name, &data, &mut out),
                SseItem::Comment(_) => out.extend_from_slice(b": working\n\n"),
            }
        }
        Bytes::from(out)
    }

    fn end(&mut self) -> Bytes {
        Bytes::new()
    }

    fn tokens(&self) -> Option<(u64, u64)> {
        self.tokens.so_far()
    }

    fn cached_tokens(&self) -> Option<u64> {
        self.tokens.so_far().map(|_| self.tokens.prompt.1)
    }
}
