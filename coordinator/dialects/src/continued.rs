//! Continuation of a last assistant message by llama.cpp's server. Fields of that server in the request decide whether
//! to continue. The server's answer repeats the text that had begun, which is removed: the candle worker, Anthropic's
//! API and vLLM answer with the new text only.
//!
//! The code follows llama.cpp's `common_chat_continuation_parse` and the server's handling of `prefill_assistant` and
//! `echo`. Builds without `continue_final_message` always continue and ignore the field.

use bytes::Bytes;
use model_boss_protocol::{Remedy, UnmetDemand};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::error::DialectError;
use crate::fields::{Fields, malformed, raw};
use crate::{Reshape, nonsense};

const FLAG: &str = "continue_final_message";

/// Sets the server's fields for continuing the last message. Returns the text that the answer may repeat.
///
/// `leaves_it`: the server was started with the option that turns continuing off by default.
pub(crate) fn ask(fields: &mut Fields, leaves_it: bool) -> Result<Option<String>, DialectError> {
    let flag = fields.get(FLAG).map_or("null", |flag| flag.get());
    let wanted = match flag {
        "null" => !leaves_it,
        "true" => true,
        "false" => false,
        // Other values are defined by the server, and passed on.
        _ => return Ok(None),
    };
    let Some(begun) = begun(fields)? else { return Ok(None) };
    match (wanted, flag) {
        (true, _) => {
            // The server refuses either field without the other. Its streams repeat the begun text unless both
            // are set.
            fields.insert(FLAG.to_owned(), raw(&json!(true))?);
            fields.insert("add_generation_prompt".to_owned(), raw(&json!(false))?);
            let is_stream = fields.get("stream").is_some_and(|stream| stream.get() == "true");
            Ok(Some(begun).filter(|_| !is_stream))
        }
        // The server treats `false` like an absent field, so `false` cannot be passed on.
        (false, "false") if !leaves_it => {
            let remedy =
                "add llamacpp_args = \"--no-prefill-assistant\" to its manifest, or serve the model by our own worker";
            let act = format!("leave a last message of the assistant as it is ('{FLAG}')");
            Err(UnmetDemand::of("llama-server", FLAG, &act, Remedy::Instead(remedy)).into())
        }
        _ => Ok(None),
    }
}

/// The text of the last message, if an answer can continue it: an assistant's, without tool calls, after other
/// messages.
fn begun(fields: &Fields) -> Result<Option<String>, DialectError> {
    #[derive(Deserialize)]
    struct LastMessage {
        role: Option<String>,
        content: Option<Value>,
        tool_calls: Option<Vec<IgnoredAny>>,
    }
    let Some(messages) = fields.get("messages") else { return Ok(None) };
    let messages: Vec<&RawValue> = serde_json::from_str(messages.get()).map_err(malformed)?;
    let Some((last, [_, ..])) = messages.split_last() else { return Ok(None) };
    let last: LastMessage = serde_json::from_str(last.get()).map_err(malformed)?;
    let text = match &last.content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    };
    let calls = last.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
    Ok(Some(text).filter(|text| last.role.as_deref() == Some("assistant") && !text.is_empty() && !calls))
}

/// Removes the text that had begun from a whole chat answer of a server that repeats it.
pub(crate) struct WithoutBegun(pub(crate) String);

impl Reshape for WithoutBegun {
    fn whole(&mut self, status: u16, body: &Bytes) -> Result<Bytes, DialectError> {
        if status >= 400 {
            return Ok(body.clone());
        }
        let mut answer: Value = serde_json::from_slice(body).map_err(nonsense)?;
        for choice in answer["choices"].as_array_mut().into_iter().flatten() {
            let content = &mut choice["message"]["content"];
            if let Some(new) = content.as_str().and_then(|text| text.strip_prefix(&self.0)) {
                *content = json!(new);
            }
        }
        Ok(Bytes::from(answer.to_string()))
    }

    fn piece(&mut self, bytes: &[u8]) -> Bytes {
        Bytes::copy_from_slice(bytes)
    }

    fn end(&mut self) -> Bytes {
        Bytes::new()
    }
}
