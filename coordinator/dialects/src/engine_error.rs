//! Errors of engines of others, in the shape and with the codes that our clients know.

use model_boss_protocol::{ApiError, ErrorCode};
use serde_json::Value;

/// How much of a body that is no JSON is repeated.
const MAX_WORDS: usize = 300;

/// The engine's error as our clients read errors: its own words, and a code of ours. A status that says nothing about the
/// request (our key is refused, the engine broke) is that of a backend that failed.
pub fn engine_error(status: u16, body: &[u8]) -> ApiError {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    // llama.cpp and vLLM put an object there, some a text; FastAPI calls it `detail`.
    let said = json.get("error").or_else(|| json.get("detail")).unwrap_or(&json);
    let text = |name: &str| said.get(name).and_then(Value::as_str);
    let message = text("message").or_else(|| said.as_str()).map_or_else(|| plain(status, body), str::to_owned);
    let kind = text("type").unwrap_or_default();
    let too_long = kind == "exceed_context_size_error" || text("code") == Some("context_length_exceeded");
    let code = match status {
        400 if too_long || tells_of_context(&message) => ErrorCode::ContextLengthExceeded,
        400 | 405 | 422 => ErrorCode::InvalidRequest,
        404 | 501 => ErrorCode::UnsupportedByModel,
        413 => ErrorCode::RequestTooLarge,
        429 => ErrorCode::QueueFull,
        _ => ErrorCode::BackendError,
    };
    let message = with_advice(message, said);
    let mut error = ApiError::new(code, message);
    error.param = text("param").map(str::to_owned);
    if code == ErrorCode::BackendError { error } else { error.with_status(status) }
}

/// The engine's words, and what they leave out: clients look for the context's length in OpenAI's words, and llama-server
/// does not say which of its options a model of vectors lacks.
fn with_advice(message: String, said: &Value) -> String {
    if message.contains("Pooling type") {
        return format!(
            "{message}; its file does not say how to pool: set llamacpp_args = \"--pooling mean\" (or cls, last) in the \
             model's manifest"
        );
    }
    match said.get("n_ctx").and_then(Value::as_u64) {
        Some(context) if !tells_of_context(&message) => {
            format!("This model's maximum context length is {context} tokens. {message}")
        }
        _ => message,
    }
}

/// vLLM and SGLang say it in words only.
fn tells_of_context(message: &str) -> bool {
    message.contains("maximum context length") || message.contains("longer than the model's context length")
}

fn plain(status: u16, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let text: String = text.trim().chars().take(MAX_WORDS).collect();
    if text.is_empty() {
        format!("the engine answered {status}")
    } else {
        format!("the engine answered {status}: {text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engines_error_has_our_shape_and_its_own_words() {
        for (status, body, code, word) in [
            (
                400,
                r#"{"error":{"code":400,"message":"'messages' is required","type":"invalid_request_error"}}"#,
                "invalid_request",
                "'messages'",
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"too long","type":"exceed_context_size_error","n_ctx":9}}"#,
                "context_length_exceeded",
                "This model's maximum context length is 9 tokens. too long",
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"Pooling type 'none' is not OAI compatible.","type":"invalid_request_error"}}"#,
                "invalid_request",
                "--pooling mean",
            ),
            (
                400,
                r#"{"object":"error","message":"This model's maximum context length is 9","code":400}"#,
                "context_length_exceeded",
                "is 9",
            ),
            (422, r#"{"detail":"no"}"#, "invalid_request", "no"),
            (
                501,
                r#"{"error":{"code":501,"message":"This server does not support embeddings"}}"#,
                "unsupported_by_model",
                "embeddings",
            ),
            (500, "<html>", "backend_error", "500: <html>"),
            (502, "", "backend_error", "502"),
        ] {
            let error = engine_error(status, body.as_bytes());
            assert_eq!(error.code.as_str(), code, "{body}");
            assert_eq!(error.status(), if code == "backend_error" { 502 } else { status }, "{body}");
            assert!(error.message.contains(word), "{error}");
        }
    }
}
