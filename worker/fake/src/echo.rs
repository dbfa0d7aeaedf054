//! A request as it arrived, for answers and reports that show it.

use std::collections::BTreeMap;

use http::{HeaderMap, header};
use serde_json::{Value, json};

/// The request and the environment, as JSON.
pub(crate) fn echo(headers: &HeaderMap, body: &[u8]) -> String {
    let env: BTreeMap<String, String> = std::env::vars().collect();
    json!({ "body": json_or_text(body), "headers": readable(headers), "env": env }).to_string()
}

/// The body as JSON; as a text if it is not JSON.
pub(crate) fn json_or_text(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap_or_else(|_| String::from_utf8_lossy(body).into())
}

/// The headers as texts, without the token.
pub(crate) fn readable(headers: &HeaderMap) -> BTreeMap<String, String> {
    headers
        .iter()
        .filter(|(name, _)| *name != header::AUTHORIZATION)
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect()
}
