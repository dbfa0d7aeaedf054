//! Errors of external engines, as errors of translations.

use serde_json::Value;

use crate::error::{DialectError, DialectFault, EngineFault};
use crate::overflow::{OPENAIS, Overflow, is_overflow, overflow_limit};

/// The most characters that an error message repeats of a body without JSON.
const MAX_WORDS: usize = 300;

/// Translates an engine's error: its own words, with a fault of [`EngineFault`]. A status that does not concern the
/// request (the engine refuses the coordinator's key, or fails itself) is [`EngineFault::Failed`].
pub fn engine_error(status: u16, body: &[u8]) -> DialectError {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    // llama.cpp and vLLM put an object into `error`, other engines a string; FastAPI calls the field `detail`.
    let said = json.get("error").or_else(|| json.get("detail")).unwrap_or(&json);
    let text = |name: &str| said.get(name).and_then(Value::as_str);
    let message = text("message").or_else(|| said.as_str()).map_or_else(|| plain(status, body), str::to_owned);
    let kind = text("type").unwrap_or_default();
    let too_long = kind == "exceed_context_size_error" || text("code") == Some("context_length_exceeded");
    let fault = match status {
        // llama-server answers 500 to a text to embed that is longer than its physical batch.
        400 | 413 | 422 | 500 if too_long || is_overflow(&message) => EngineFault::PromptTooLong,
        400 | 405 | 422 => EngineFault::InvalidRequest,
        404 | 501 => EngineFault::Unsupported,
        413 => EngineFault::TooLarge,
        429 => EngineFault::Busy,
        _ => EngineFault::Failed,
    };
    let fault = DialectFault::Engine { fault, status };
    let field = text("param").map(str::to_owned);
    DialectError { field, ..DialectError::new(fault, with_advice(message, said)) }
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
    fn an_engines_error_has_a_fault_of_ours_and_its_own_words() {
        for (status, body, fault, word) in [
            (
                400,
                r#"{"error":{"code":400,"message":"'messages' is required","type":"invalid_request_error"}}"#,
                EngineFault::InvalidRequest,
                "'messages'",
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"too long","type":"exceed_context_size_error","n_ctx":9}}"#,
                EngineFault::PromptTooLong,
                "This model's maximum context length is 9 tokens. too long",
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"long","type":"exceed_context_size_error","n_prompt_tokens":12,"n_ctx":9}}"#,
                EngineFault::PromptTooLong,
                "This model's maximum context length is 9 tokens. long (the prompt has 12 tokens)",
            ),
            (
                400,
                r#"{"error":{"code":400,"message":"Pooling type 'none' is not OAI compatible.","type":"invalid_request_error"}}"#,
                EngineFault::InvalidRequest,
                "--pooling mean",
            ),
            (
                400,
                r#"{"object":"error","message":"This model's maximum context length is 9","code":400}"#,
                EngineFault::PromptTooLong,
                "is 9",
            ),
            (
                500,
                r#"{"error":{"code":500,"message":"input (596 tokens) is too large to process. increase the physical batch size (current batch size: 512)","type":"server_error"}}"#,
                EngineFault::PromptTooLong,
                "This model's maximum context length is 512 tokens. input (596 tokens)",
            ),
            (
                400,
                r#"{"object":"error","message":"The input (5000 tokens) is longer than the model's context length (4096 tokens)."}"#,
                EngineFault::PromptTooLong,
                "This model's maximum context length is 4096 tokens.",
            ),
            (422, r#"{"detail":"no"}"#, EngineFault::InvalidRequest, "no"),
            (
                501,
                r#"{"error":{"code":501,"message":"This server does not support embeddings"}}"#,
                EngineFault::Unsupported,
                "embeddings",
            ),
            (500, "<html>", EngineFault::Failed, "500: <html>"),
            (502, "", EngineFault::Failed, "502"),
        ] {
            let error = engine_error(status, body.as_bytes());
            assert_eq!(error.fault, DialectFault::Engine { fault, status }, "{body}");
            assert!(error.message.contains(word), "{error}");
        }
    }
}
