//! `/tokenize` and `/detokenize` of external engines. llama-server and vLLM name the fields differently; here both
//! names work for every engine, and answers have both.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::error::DialectError;
use crate::fields::{Fields, raw};
use crate::{Reshape, nonsense};

/// The path that turns a text into tokens.
pub const TOKENIZE: &str = "/tokenize";

/// The path that turns tokens into a text.
pub const DETOKENIZE: &str = "/detokenize";

/// Whether a path is about tokens, not an answer.
pub(crate) fn is_about_tokens(path: &str) -> bool {
    path == TOKENIZE || path == DETOKENIZE
}

/// Gives the text to be tokenised the names that the engine reads. A text under llama-server's name gets no special
/// tokens unless the request says so, and one under vLLM's does, as with these servers.
pub(crate) fn rename(fields: &mut Fields, is_llama_server: bool) -> Result<(), DialectError> {
    let (theirs, flag) = if is_llama_server { ("content", "add_special") } else { ("prompt", "add_special_tokens") };
    let given = ["content", "prompt"].into_iter().find_map(|name| Some((name, fields.get(name)?.clone())));
    let Some((name, text)) = given else {
        if is_llama_server && fields.contains_key("messages") {
            let message =
                "llama-server tokenises texts only: send 'content', or leave the counting to an answer's usage";
            return Err(DialectError::unsupported("messages", message));
        }
        return Ok(());
    };
    let wish = ["add_special", "add_special_tokens"].into_iter().find_map(|flag| fields.remove(flag));
    let wish = wish.map_or_else(|| raw(&json!(name == "prompt")), Ok)?;
    fields.insert(flag.to_owned(), wish);
    fields.remove(name);
    fields.insert(theirs.to_owned(), text);
    Ok(())
}

/// Gives an engine's answer the names of both servers.
pub(crate) struct TokensToBothNames;

impl Reshape for TokensToBothNames {
    fn whole(&mut self, status: u16, body: &Bytes) -> Result<Bytes, DialectError> {
        if status >= 400 {
            return Ok(body.clone());
        }
        let mut answer: Map<String, Value> = serde_json::from_slice(body).map_err(nonsense)?;
        if let Some(tokens) = answer.get("tokens").and_then(Value::as_array) {
            let count = tokens.len();
            answer.entry("count").or_insert_with(|| json!(count));
        }
        for (name, other) in [("content", "prompt"), ("prompt", "content")] {
            if let Some(text) = answer.get(name).cloned() {
                answer.entry(other).or_insert(text);
            }
        }
        Ok(Bytes::from(Value::Object(answer).to_string()))
    }

    fn piece(&mut self, _: &[u8]) -> Bytes {
        Bytes::new()
    }

    fn end(&mut self) -> Bytes {
        Bytes::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EngineDialect, Stamp};

    fn prepared(is_llama_server: bool, path: &'static str, body: &Value) -> Result<Value, DialectError> {
        let dialect = EngineDialect {
            served_name: "org/m".into(),
            params: [("temperature".to_owned(), json!(1))].into(),
            is_llama_server,
            ..EngineDialect::default()
        };
        let stamp = Stamp { id: "1".into(), model: "m".into(), created: 0 };
        let prepared = dialect.prepare(path, &Bytes::from(body.to_string()), stamp)?;
        assert_eq!(prepared.path, path);
        Ok(serde_json::from_slice(&prepared.body).unwrap())
    }

    #[test]
    fn en_7_a_text_reaches_every_engine_under_its_own_names() {
        for (is_llama_server, asked, expected) in [
            (true, json!({ "content": "a" }), json!({ "content": "a", "add_special": false })),
            (true, json!({ "prompt": "a" }), json!({ "content": "a", "add_special": true })),
            (
                true,
                json!({ "content": "a", "add_special": true, "with_pieces": true }),
                json!({ "content": "a", "add_special": true, "with_pieces": true }),
            ),
            (false, json!({ "content": "a" }), json!({ "prompt": "a", "add_special_tokens": false })),
            (false, json!({ "prompt": "a" }), json!({ "prompt": "a", "add_special_tokens": true })),
            (false, json!({ "messages": [] }), json!({ "messages": [] })),
        ] {
            let mut expected = expected;
            expected["model"] = json!("org/m");
            assert_eq!(prepared(is_llama_server, TOKENIZE, &asked).unwrap(), expected, "{asked}");
        }
        let refused = prepared(true, TOKENIZE, &json!({ "messages": [] })).unwrap_err();
        assert_eq!(refused.field.as_deref(), Some("messages"));
        let tokens = prepared(true, DETOKENIZE, &json!({ "tokens": [1] })).unwrap();
        assert_eq!(tokens, json!({ "tokens": [1], "model": "org/m" }));
    }

    #[test]
    fn answers_have_the_names_of_both_servers() {
        for (given, expected) in [
            (json!({ "tokens": [1, 2] }), json!({ "tokens": [1, 2], "count": 2 })),
            (
                json!({ "tokens": [], "count": 9, "max_model_len": 3 }),
                json!({ "tokens": [], "count": 9, "max_model_len": 3 }),
            ),
            (json!({ "content": "a" }), json!({ "content": "a", "prompt": "a" })),
            (json!({ "prompt": "a" }), json!({ "content": "a", "prompt": "a" })),
        ] {
            let answer = TokensToBothNames.whole(200, &Bytes::from(given.to_string())).unwrap();
            assert_eq!(serde_json::from_slice::<Value>(&answer).unwrap(), expected);
        }
        assert!(TokensToBothNames.whole(200, &Bytes::from_static(b"[]")).is_err());
    }
}
