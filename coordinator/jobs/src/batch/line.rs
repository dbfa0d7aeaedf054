//! One line of a batch.

use serde::Deserialize;
use serde_json::value::RawValue;

/// The longest `custom_id`, in bytes.
const MAX_CUSTOM_ID: usize = 512;

/// The rules for every line of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRules {
    /// The route of the batch, which each line repeats.
    pub endpoint: String,
    /// The most lines.
    pub lines: usize,
    /// The longest line in bytes.
    pub line_bytes: usize,
}

/// A line that was read.
#[derive(Debug)]
pub struct InputLine<'a> {
    /// The client's name of the line.
    pub custom_id: String,
    /// The request's body, as it was written.
    pub body: &'a RawValue,
    /// The model that the body names.
    pub model: Option<String>,
}

/// Why a line is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineFault {
    /// A code as OpenAI's API has it.
    pub code: &'static str,
    /// The fault and its remedy.
    pub message: String,
    /// The field.
    pub param: Option<&'static str>,
}

/// A line as it is written. Fields that are unknown are ignored, as in requests.
#[derive(Deserialize)]
struct WrittenLine<'a> {
    custom_id: Option<String>,
    method: Option<String>,
    url: Option<String>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
}

/// The fields of a body that a batch looks at.
#[derive(Deserialize)]
struct BodyHead {
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    stream: Option<bool>,
}

/// Reads a line, without the end of the line.
pub fn read_line<'a>(line: &'a [u8], rules: &BatchRules) -> Result<InputLine<'a>, LineFault> {
    let fault = |code, message: String, param| LineFault { code, message, param };
    let text = std::str::from_utf8(line)
        .map_err(|error| fault("invalid_json_line", format!("the line is not UTF-8: {error}"), None))?;
    if !text.trim_start().starts_with('{') {
        return Err(fault("invalid_json_line", "the line is not a JSON object".to_owned(), None));
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = serde_path_to_error::deserialize(&mut reader);
    let WrittenLine { custom_id, method, url, body } = read.map_err(|error| {
        let path = error.path().to_string();
        let field = ["custom_id", "method", "url", "body"].into_iter().find(|field| path == *field);
        let of_field = field.map(|field| format!("'{field}': ")).unwrap_or_default();
        fault("invalid_json_line", format!("the line cannot be read: {of_field}{}", error.into_inner()), field)
    })?;
    reader.end().map_err(|error| fault("invalid_json_line", format!("the line cannot be read: {error}"), None))?;
    let missing = |name: &'static str| fault("missing_required_parameter", format!("'{name}' is missing"), Some(name));
    let custom_id = custom_id.filter(|id| !id.is_empty()).ok_or_else(|| missing("custom_id"))?;
    if custom_id.len() > MAX_CUSTOM_ID {
        let message = format!("'custom_id' is longer than {MAX_CUSTOM_ID} bytes");
        return Err(fault("invalid_custom_id", message, Some("custom_id")));
    }
    let method = method.ok_or_else(|| missing("method"))?;
    if method != "POST" {
        return Err(fault("invalid_method", format!("'method' is {method:?}, and must be POST"), Some("method")));
    }
    let url = url.ok_or_else(|| missing("url"))?;
    if url != rules.endpoint {
        let shown: String = url.chars().take(100).collect();
        let message = format!("'url' is {shown:?}, and the batch's endpoint is {}", rules.endpoint);
        return Err(fault("mismatched_url", message, Some("url")));
    }
    let body = body.ok_or_else(|| missing("body"))?;
    if !body.get().starts_with('{') {
        return Err(fault("invalid_body", "'body' is not an object".to_owned(), Some("body")));
    }
    let BodyHead { model, stream } = serde_json::from_str(body.get())
        .map_err(|error| fault("invalid_body", format!("'body' cannot be read: {error}"), Some("body")))?;
    if stream == Some(true) {
        let message = "'body' asks for a stream, and a batch has whole answers; leave 'stream' out".to_owned();
        return Err(fault("invalid_body", message, Some("body")));
    }
    Ok(InputLine { custom_id, body, model })
}
