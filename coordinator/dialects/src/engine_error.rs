//! Errors of external engines, in the shape and with the codes of model-boss's API.

use model_boss_protocol::{ApiError, ErrorCode};
use serde_json::Value;

use crate::overflow::{OPENAIS, Overflow, is_overflow, overflow_limit};

/// The most characters that an error message repeats of a body without JSON.
const MAX_WORDS: usize = 300;

/// Translates an engine's error: its own words, with a code of model-boss. A status that does not concern the request
/// (the engine refuses the coordinator's key, or fails itself) becomes `backend_error`.
pub fn engine_error(status: u16, body: &[u8]) -> ApiError {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    // llama.cpp and vLLM put an object into `error`, other engines a string; FastAPI calls the field `detail`.
    let said = json.get("error").or_else(|| json.get("detail")).unwrap_or(&json);
    let text = |name: &str| said.get(name).and_then(Value::as_str);
    let message = text("message").or_else(|| said.as_str()).map_or_else(|| plain(status, body), str::to_owned);
    let kind = text("type").unwrap_or_default();
    let too_long = kind == "exceed_context_size_error" || text("code") == Some("context_length_exceeded");
    let code = match status {
        // llama-server answers 500 to a text to embed that is longer than its physical batch.
        400 | 413 | 422 | 500 if too_long || is_overflow(&message) => ErrorCode::ContextLengthExceeded,
        400 | 405 | 422 => ErrorCode::InvalidRequest,
        404 | 501 => ErrorCode::UnsupportedByModel,
        413 => ErrorCode::RequestTooLarge,
        429 => ErrorCode::QueueFull,
        _ => ErrorCode::BackendError,
    };
    let message = with_advice(message, said);
    let mut error = ApiError::new(code, message);
    error.param = text("param").map(str::to_owned);
    match code {
        ErrorCode::BackendError | ErrorCode::ContextLengthExceeded => error,
        _ => error.with_status(status),
    }
}

/// The engine's message, with missing facts added. Clients search it for the context's length in OpenAI's words.
/// llama-server does not name the option that an embedding model lacks.
fn with_advice(message: String, said: &Value) -> String {
    if message.contains("Pooling type") {
        return format!(
            "{message}; its file does not say how to pool: set llamacpp_args = \"--pooling mean\" (or cls, last) in the \
             model's manifest"
        );
    }
    let count = |name: &str| said.get(name).and_then(Value::as_u64);
    let limit = count("n_ctx").or_else(|| overflow_limit(&message));
    // llama-server's older words lack the number that its fields have.
    let message = match count("n_prompt_tokens").filter(|_| Overflow::in_words(&message).prompt.is_none()) {
        Some(tokens) => format!("{message} (the prompt has {tokens} tokens)"),
        None => message,
    };
    match limit.filter(|_| !message.contains(OPENAIS)) {
        Some(limit) if message.contains("physical batch") => {
            format!("{OPENAIS} is {limit} tokens. {message}: raise --ubatch-size in the llamacpp_args of its manifest")
        }
        Some(limit) => format!("{OPENAIS} is {limit} tokens. {message}"),
        None => message,
    }
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
                r#"{"error":{"code":400,"message":"long","type":"exceed_context_size_error","n_prompt_tokens":12,"n_ctx":9}}"#,
                "context_length_exceeded",
                "This model's maximum context length is 9 tokens. long (the prompt has 12 tokens)",
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
            (
                500,
                r#"{"error":{"code":500,"message":"input (596 tokens) is too large to process. increase the physical batch size (current batch size: 512)","type":"server_error"}}"#,
                "context_length_exceeded",
                "This model's maximum context length is 512 tokens. input (596 tokens)",
            ),
            (
                400,
                r#"{"object":"error","message":"The input (5000 tokens) is longer than the model's context length (4096 tokens)."}"#,
                "context_length_exceeded",
                "This model's maximum context length is 4096 tokens.",
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
            let expected = match code {
                "backend_error" => 502,
                "context_length_exceeded" => 400,
                _ => status,
            };
            assert_eq!(error.status(), expected, "{body}");
            assert!(error.message.contains(word), "{error}");
        }
    }
}
