//! Requests as an external engine takes them: with the engine's own name of the model and the manifest's defaults. A
//! model without a chat template gets a prompt in place of a conversation (RC-17, RC-23).

use std::collections::BTreeMap;

use bytes::Bytes;
use model_boss_protocol::{DEMANDS, Demand, PromptFormat, THINKING_BUDGETS, Thinking};
use serde_json::{Map, Value, json};

use crate::completion::{CompletionKind, CompletionToChat, completion_request};
use crate::continued::{self, WithoutBegun};
use crate::error::DialectError;
use crate::fields::{Fields, malformed, raw};
use crate::llama::is_native;
use crate::tokens::{TokensToBothNames, is_about_tokens};
use crate::{Reshape, Stamp, thinking, tokens, tool_subset};

/// Rules by which requests are translated for one engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineDialect {
    /// The model's name in the engine.
    pub served_name: String,
    /// Defaults of the manifest, for requests that do not set these fields.
    pub params: BTreeMap<String, Value>,
    /// The manifest's default for models that can think: off, on, or a budget of tokens.
    pub thinking: Option<Thinking>,
    /// The format of prompts, for a model without a chat template; `None`: the engine has the template.
    pub prompt: Option<PromptFormat>,
    /// Whether the engine is llama.cpp's server, with its own `/completion`.
    pub is_llama_server: bool,
    /// Whether the engine was started with `--no-prefill-assistant`: it does not continue a last assistant message by
    /// default.
    pub leaves_last_message: bool,
}

/// A request translated for the engine.
pub struct Prepared {
    /// The engine's path, which differs from the client's where a completion replaces a chat.
    pub path: &'static str,
    /// The request's body, as JSON.
    pub body: Bytes,
    /// The translation of the engine's answer back into the client's shape; `None`: passed on as it is.
    pub reshape: Option<Box<dyn Reshape>>,
    /// A note for a response header, where the engine cannot meet the wish about thinking.
    pub thinking: Option<&'static str>,
}

impl EngineDialect {
    /// Whether requests to `path` are parsed into a document, which takes many times their memory.
    pub fn takes_apart(&self, path: &str) -> bool {
        self.prompt.is_some() && path.ends_with("/chat/completions")
    }

    /// Translates a request for the engine, and prepares the translation of its answer.
    pub fn prepare(&self, path: &'static str, body: &Bytes, stamp: Stamp) -> Result<Prepared, DialectError> {
        let chat = path.ends_with("/chat/completions");
        let mut fields: Fields = serde_json::from_slice(body).map_err(malformed)?;
        if is_about_tokens(path) {
            return self.prepare_tokens(path, fields);
        }
        if is_native(path) && !self.is_llama_server {
            let message = format!(
                "{path} is answered by our own worker and by llama-server; serve the model by one of them, or use \
                 /v1/chat/completions or /v1/completions"
            );
            return Err(DialectError::unsupported("model", message));
        }
        self.refuse_demands(&fields)?;
        if !self.is_llama_server {
            endless(&mut fields, chat)?;
        }
        if self.is_llama_server {
            ask_for_progress(&mut fields)?;
        }
        for (name, value) in &self.params {
            if !fields.contains_key(name) {
                fields.insert(name.clone(), raw(value)?);
            }
        }
        if chat {
            tool_subset::only_allowed_in(&mut fields)?;
        }
        if let (Some(format), true) = (self.prompt, chat) {
            let body: Map<String, Value> = serde_json::from_value(json!(fields)).map_err(malformed)?;
            let kind = if self.is_llama_server { CompletionKind::LlamaServer } else { CompletionKind::OpenAi };
            let request = completion_request(format, kind, &self.served_name, &body)?;
            let reshape = CompletionToChat::new(kind, stamp, &body);
            let body = Bytes::from(request.to_string());
            return Ok(Prepared { path: kind.path(), body, reshape: Some(Box::new(reshape)), thinking: None });
        }
        let continues = self.is_llama_server && chat;
        let begun = if continues { continued::ask(&mut fields, self.leaves_last_message)? } else { None };
        let note = if chat { self.think(&mut fields)? } else { None };
        fields.remove(thinking::FIELD);
        fields.insert("model".to_owned(), raw(&json!(self.served_name))?);
        let body = serde_json::to_vec(&fields).map_err(malformed)?;
        let reshape = begun.map(|begun| Box::new(WithoutBegun(begun)) as Box<dyn Reshape>);
        Ok(Prepared { path, body: Bytes::from(body), reshape, thinking: note })
    }

    /// Translates a request about tokens. Defaults of the manifest are for answers.
    fn prepare_tokens(&self, path: &'static str, mut fields: Fields) -> Result<Prepared, DialectError> {
        tokens::rename(&mut fields, self.is_llama_server)?;
        fields.insert("model".to_owned(), raw(&json!(self.served_name))?);
        let body = Bytes::from(serde_json::to_vec(&fields).map_err(malformed)?);
        Ok(Prepared { path, body, reshape: Some(Box::new(TokensToBothNames)), thinking: None })
    }

    /// Refuses demands that llama.cpp's server would ignore. Requests to other engines pass, since their fields are
    /// unknown.
    fn refuse_demands(&self, fields: &Fields) -> Result<(), DialectError> {
        let unknown = |name: &str| {
            let is_known = DEMANDS.iter().any(|demand| demand.field == name && demand.remedy.is_llama_server());
            fields.get(name).filter(|_| !is_known).map(|value| value.get())
        };
        match Demand::first_in(unknown) {
            Some(demand) if self.is_llama_server => Err(demand.refused_by("llama-server").into()),
            _ => Ok(()),
        }
    }

    /// Translates the wish about thinking into the engine's fields. All other fields keep their bytes.
    fn think(&self, fields: &mut Fields) -> Result<Option<&'static str>, DialectError> {
        let mut said = Map::new();
        for name in thinking::FIELDS.into_iter().chain(THINKING_BUDGETS) {
            if let Some(value) = fields.remove(name) {
                said.insert(name.to_owned(), serde_json::from_str(value.get()).map_err(malformed)?);
            }
        }
        let note = thinking::for_engine(&mut said, self.thinking, self.is_llama_server)?;
        for (name, value) in said {
            fields.insert(name, raw(&value)?);
        }
        Ok(note)
    }
}

/// Translates -1, which is no limit of an answer's length for llama.cpp's server. Chats of vLLM and others have no
/// limit by default; their completions have one unless the field is `null`.
fn endless(fields: &mut Fields, chat: bool) -> Result<(), DialectError> {
    for name in ["max_completion_tokens", "max_tokens"] {
        let Some(limit) = fields.get(name) else { continue };
        if limit.get().parse::<i64>().is_ok_and(|limit| limit < 0) {
            fields.remove(name);
            if !chat {
                fields.insert(name.to_owned(), raw(&Value::Null)?);
            }
        }
    }
    Ok(())
}

/// Requests progress reports from llama.cpp's server, if a client wants tokens counted from the first chunk. Only
/// progress reports have the prompt's tokens early.
fn ask_for_progress(fields: &mut Fields) -> Result<(), DialectError> {
    const PROGRESS: &str = "return_progress";
    let options = fields.get("stream_options").map_or("null", |options| options.get());
    let options: Value = serde_json::from_str(options).map_err(malformed)?;
    if options["continuous_usage_stats"] == true && !fields.contains_key(PROGRESS) {
        fields.insert(PROGRESS.to_owned(), raw(&json!(true))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::DialectFault;

    fn prepare(dialect: &EngineDialect, body: &Value) -> (&'static str, Value) {
        let stamp = Stamp { id: "1".into(), model: "m".into(), created: 0 };
        let prepared = dialect.prepare("/v1/chat/completions", &Bytes::from(body.to_string()), stamp).unwrap();
        (prepared.path, serde_json::from_slice(&prepared.body).unwrap())
    }

    #[test]
    fn rc_17_an_engine_hears_its_own_name_and_the_manifests_defaults() {
        let dialect = EngineDialect {
            served_name: "org/m".into(),
            params: BTreeMap::from([("temperature".into(), json!(0.7)), ("top_k".into(), json!(5))]),
            thinking: Some(Thinking::Off),
            ..EngineDialect::default()
        };
        let (path, body) = prepare(&dialect, &json!({ "model": "default", "temperature": 0, "messages": [] }));
        assert_eq!(path, "/v1/chat/completions");
        assert_eq!(
            body,
            json!({ "model": "org/m", "temperature": 0, "top_k": 5, "messages": [],
                "chat_template_kwargs": { "enable_thinking": false } })
        );
        let own = json!({ "model": "m", "messages": [], "chat_template_kwargs": {} });
        assert_eq!(prepare(&dialect, &own).1["chat_template_kwargs"], json!({ "enable_thinking": false }));
        let body = Bytes::from_static(br#"{"prompt":"x","thinking":{"type":"disabled"}}"#);
        let stamp = Stamp { id: "1".into(), model: "m".into(), created: 0 };
        let plain = dialect.prepare("/v1/completions", &body, stamp).unwrap().body;
        assert!(!String::from_utf8_lossy(&plain).contains("thinking"), "only chats think");
    }

    #[test]
    fn rc_17_an_engine_gets_every_demand_that_it_knows_and_refuses_no_other_in_silence() {
        let stamp = || Stamp { id: "1".into(), model: "m".into(), created: 0 };
        let ask = |dialect: &EngineDialect, field: &str| {
            let body = json!({ "messages": [{ "role": "user", "content": "?" }], field: { "a": 1 } });
            let prepared = dialect.prepare("/v1/chat/completions", &Bytes::from(body.to_string()), stamp());
            prepared.map(|prepared| serde_json::from_slice::<Value>(&prepared.body).unwrap())
        };
        for prompt in [None, Some(PromptFormat::Alpaca)] {
            let command = EngineDialect { prompt, ..EngineDialect::default() };
            let llama_server = EngineDialect { is_llama_server: true, ..command.clone() };
            for demand in DEMANDS {
                for detail in demand.details {
                    let body = ask(&llama_server, detail).unwrap();
                    assert_eq!(body[detail]["a"], 1, "{prompt:?} {detail}");
                }
                assert_eq!(ask(&command, demand.field).unwrap()[demand.field]["a"], 1, "{prompt:?} {}", demand.field);
                match ask(&llama_server, demand.field) {
                    Ok(body) => {
                        assert_eq!((&body[demand.field]["a"], true), (&json!(1), demand.remedy.is_llama_server()))
                    }
                    Err(error) => {
                        assert_eq!(
                            (error.field.as_deref(), demand.remedy.is_llama_server()),
                            (Some(demand.field), false)
                        );
                    }
                }
            }
            let format = ask(&llama_server, "response_format");
            assert!(format.is_ok_and(|body| body["response_format"]["a"] == 1), "{prompt:?}");
        }
    }

    #[test]
    fn en_7_an_engine_is_offered_only_the_tools_that_are_allowed() {
        let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
        let choice = json!({ "type": "allowed_tools", "allowed_tools": { "mode": "required", "tools": [tool("b")] } });
        let asked = json!({ "messages": [], "tools": [tool("a"), tool("b")], "tool_choice": choice });
        for is_llama_server in [false, true] {
            let dialect = EngineDialect { is_llama_server, ..EngineDialect::default() };
            let (_, body) = prepare(&dialect, &asked);
            assert_eq!((&body["tools"], &body["tool_choice"]), (&json!([tool("b")]), &json!("required")));
        }
    }

    #[test]
    fn rc_23_a_budget_in_a_peers_field_goes_before_the_manifest() {
        let dialect =
            EngineDialect { thinking: Some(Thinking::Off), is_llama_server: true, ..EngineDialect::default() };
        let (_, body) = prepare(&dialect, &json!({ "messages": [], "reasoning_budget": 5 }));
        assert_eq!(body["thinking_budget_tokens"], 5);
        assert_eq!(
            (&body["chat_template_kwargs"]["enable_thinking"], body.get("reasoning_budget")),
            (&json!(true), None)
        );
        let alpaca = EngineDialect { prompt: Some(PromptFormat::Alpaca), ..dialect };
        let (_, body) = prepare(&alpaca, &json!({ "messages": [], "reasoning_budget": 5 }));
        assert_eq!(body.get("reasoning_budget"), None, "a prompt has no thoughts apart");
    }

    #[test]
    fn en_7_an_answer_without_a_limit_has_none_in_every_engine() {
        let llama_server = EngineDialect { is_llama_server: true, ..EngineDialect::default() };
        let vllm = EngineDialect::default();
        let ask = |dialect: &EngineDialect, path: &'static str, limit: i64| {
            let stamp = Stamp { id: "1".into(), model: "m".into(), created: 0 };
            let body = Bytes::from(json!({ "prompt": "x", "messages": [], "max_tokens": limit }).to_string());
            let body = dialect.prepare(path, &body, stamp).unwrap().body;
            serde_json::from_slice::<Value>(&body).unwrap().get("max_tokens").cloned()
        };
        for (dialect, path, limit, expected) in [
            (&llama_server, "/v1/completions", -1, Some(json!(-1))),
            (&vllm, "/v1/completions", -1, Some(Value::Null)),
            (&vllm, "/v1/completions", 7, Some(json!(7))),
            (&vllm, "/v1/chat/completions", -1, None),
            (&vllm, "/v1/chat/completions", 7, Some(json!(7))),
        ] {
            assert_eq!(ask(dialect, path, limit), expected, "{path} {limit}");
        }
    }

    #[test]
    fn en_7_a_llama_server_that_is_to_count_from_the_start_is_asked_for_its_progress() {
        let llama_server = EngineDialect { is_llama_server: true, ..EngineDialect::default() };
        let alpaca = EngineDialect { prompt: Some(PromptFormat::Alpaca), ..llama_server.clone() };
        let ask = |options: Value| json!({ "messages": [], "stream": true, "stream_options": options });
        let continuous = ask(json!({ "include_usage": true, "continuous_usage_stats": true }));
        for dialect in [&llama_server, &alpaca] {
            assert_eq!(prepare(dialect, &continuous).1["return_progress"], true);
            assert_eq!(prepare(dialect, &ask(json!({ "include_usage": true }))).1.get("return_progress"), None);
        }
        let mut own = continuous.clone();
        own["return_progress"] = json!(false);
        assert_eq!(prepare(&llama_server, &own).1["return_progress"], false, "a client's own word counts");
        assert_eq!(prepare(&EngineDialect::default(), &continuous).1.get("return_progress"), None);
    }

    #[test]
    fn en_4_en_6_a_llama_server_is_asked_to_go_on_and_says_that_it_cannot_leave_it() {
        let stamp = || Stamp { id: "1".into(), model: "m".into(), created: 0 };
        let ask = |dialect: &EngineDialect, role: &str, more: Value| {
            let messages = json!([{ "role": "user", "content": "?" }, { "role": role, "content": "It is" }]);
            let mut body = json!({ "messages": messages });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            dialect.prepare("/v1/chat/completions", &Bytes::from(body.to_string()), stamp())
        };
        let sent = |prepared: &Prepared| -> (Value, Value) {
            let body: Value = serde_json::from_slice(&prepared.body).unwrap();
            (body["continue_final_message"].clone(), body["add_generation_prompt"].clone())
        };
        let llama_server = EngineDialect { is_llama_server: true, ..EngineDialect::default() };
        let leaves_it = EngineDialect { leaves_last_message: true, ..llama_server.clone() };
        let flag = |flag: Value| json!({ "continue_final_message": flag });
        let (on, unsaid) = ((json!(true), json!(false)), (json!(null), json!(null)));
        for (dialect, role, more, expected) in [
            (&llama_server, "assistant", json!({}), &on),
            (&llama_server, "assistant", flag(json!(true)), &on),
            (&llama_server, "user", json!({}), &unsaid),
            (&llama_server, "user", flag(json!(false)), &(json!(false), json!(null))),
            (&llama_server, "assistant", flag(json!("content")), &(json!("content"), json!(null))),
            (&leaves_it, "assistant", json!({}), &unsaid),
            (&leaves_it, "assistant", flag(json!(true)), &on),
            (&leaves_it, "assistant", flag(json!(false)), &(json!(false), json!(null))),
            (&EngineDialect::default(), "assistant", flag(json!(false)), &(json!(false), json!(null))),
        ] {
            assert_eq!(&sent(&ask(dialect, role, more.clone()).unwrap()), expected, "{role} {more}");
        }
        let refused = ask(&llama_server, "assistant", flag(json!(false))).err().unwrap();
        let place = (refused.fault, refused.field.as_deref());
        assert_eq!(place, (DialectFault::Unsupported, Some("continue_final_message")));
        assert!(refused.message.contains("our own worker"), "it names an engine that can: {refused}");
        // Whole answers of newer builds repeat the text that had begun; streams with both fields set do not.
        let mut reshape = ask(&llama_server, "assistant", json!({})).unwrap().reshape.unwrap();
        let whole = |text: &str| json!({ "choices": [{ "message": { "content": text } }] });
        for said in ["It is four", " four"] {
            let answer = reshape.whole(200, &Bytes::from(whole(said).to_string())).unwrap();
            assert_eq!(serde_json::from_slice::<Value>(&answer).unwrap(), whole(" four"));
        }
        assert!(ask(&llama_server, "assistant", json!({ "stream": true })).unwrap().reshape.is_none());
        let alpaca = EngineDialect { prompt: Some(PromptFormat::Alpaca), ..llama_server };
        let body = ask(&alpaca, "assistant", flag(json!(false))).unwrap().body;
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert!(body["prompt"].as_str().unwrap().ends_with("It is\n\n### Response:\n"), "we write this prompt: {body}");
    }

    #[test]
    fn numbers_keep_their_digits() {
        let body = Bytes::from_static(br#"{"seed":123456789012345678901234567890,"x":1.10}"#);
        let stamp = Stamp { id: "1".into(), model: "m".into(), created: 0 };
        let dialect = EngineDialect { served_name: "m".into(), ..EngineDialect::default() };
        let prepared = dialect.prepare("/v1/completions", &body, stamp).unwrap();
        let text = String::from_utf8(prepared.body.to_vec()).unwrap();
        assert!(text.contains("123456789012345678901234567890") && text.contains("1.10"), "{text}");
    }
}
