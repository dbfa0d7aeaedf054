//! Translates a request into the form that its provider accepts: OpenAI's, Anthropic's, or the input of the `claude`
//! command line.

use std::path::PathBuf;

use bytes::Bytes;
use model_boss_config::{JsonLimits, ProviderKind};
use model_boss_dialects::anthropic::{
    ChatFromMessages, CommandQuestion, PassedAnswer, command_question, thinking_note, to_messages_request,
};
use model_boss_dialects::thinking::{drop_thoughts, for_provider};
use model_boss_dialects::{MESSAGES, Reshape, Stamp, only_allowed_tools};
use model_boss_http::json;
use model_boss_http::memory::{Admission, HeldMemory};
use model_boss_http::offload::offload;
use serde_json::{Value, json};

use super::bill::{Bill, BilledChat, BilledMessages, BilledPassed, Most};
use super::error::{CloudError, CloudUnsupported};
use super::own::OwnMessages;

/// A request to be translated.
pub(super) struct CloudCall {
    pub(super) kind: ProviderKind,
    /// The program to run, where the provider is a command.
    pub(super) command: Option<PathBuf>,
    /// Whether the provider is on this machine, or belongs to its owner.
    pub(super) is_own: bool,
    /// Whether the body was translated from another API.
    pub(super) is_translated: bool,
    /// The path in OpenAI's API.
    pub(super) path: &'static str,
    /// The provider's own name of the model.
    pub(super) model: String,
    /// The body in OpenAI's form.
    pub(super) body: Bytes,
    /// The id and other names of the answer.
    pub(super) stamp: Stamp,
    pub(super) bill: Bill,
    /// The memory for parsing and rewriting the body.
    pub(super) memory: HeldMemory,
    pub(super) limits: JsonLimits,
    /// The request in the provider's own shape, if its client speaks that.
    pub(super) own: Option<OwnMessages>,
}

/// A request in its provider's form.
pub(super) struct Put {
    pub(super) question: PutQuestion,
    /// The translation of the request's answer.
    pub(super) reshape: Box<dyn Reshape>,
    /// The part of a wish about thinking that the provider cannot follow.
    pub(super) thinking: Option<&'static str>,
    /// The estimated tokens of the prompt.
    pub(super) prompt: u64,
}

pub(super) enum PutQuestion {
    Http { path: &'static str, body: Bytes },
    Command { program: PathBuf, question: CommandQuestion, is_stream: bool },
}

/// Translates a request. Large bodies, usually with images, are parsed off the thread that serves sockets.
pub(super) async fn put(order: CloudCall) -> Result<Put, CloudError> {
    offload(order.body.len(), move || put_now(order)).await
}

/// Passes a request on in its own shape. It is parsed for its cost alone.
fn put_own(
    own: &OwnMessages,
    model: &str,
    mut bill: Bill,
    mut memory: HeldMemory,
    limits: JsonLimits,
) -> Result<Put, CloudError> {
    let fields = json::object(&own.body, limits, &mut memory, Admission::Accepted)?;
    let most = Most::of(&fields, fields.get("max_tokens").and_then(Value::as_u64));
    bill.reserve(most)?;
    let reshape = Box::new(BilledPassed { answer: PassedAnswer::new(own.model.clone()), bill });
    let question = PutQuestion::Http { path: MESSAGES, body: memory.keep(own.body_for(model)) };
    Ok(Put { question, reshape, thinking: None, prompt: most.guessed_prompt() })
}

fn put_now(order: CloudCall) -> Result<Put, CloudError> {
    let CloudCall { kind, command, is_own, is_translated, path, model, body, stamp, mut bill, mut memory, limits, own } =
        order;
    if let Some(own) = own {
        return put_own(&own, &model, bill, memory, limits);
    }
    let mut chat = json::object(&body, limits, &mut memory, Admission::Accepted)?;
    only_allowed_tools(&mut chat)?;
    let prompt = Most::of(&chat, None).guessed_prompt();
    let is_stream = chat.get("stream") == Some(&json!(true));
    match kind {
        ProviderKind::Anthropic if path != "/v1/chat/completions" => Err(CloudUnsupported::OnlyChats(path).into()),
        ProviderKind::Anthropic => {
            let question = match command {
                Some(program) => {
                    let question = command_question(&chat)?;
                    let answer = question.max_tokens.saturating_add(question.thinking.unwrap_or(0));
                    bill.reserve(Most::of(&chat, Some(answer)))?;
                    PutQuestion::Command { program, question, is_stream }
                }
                None => {
                    let request = to_messages_request(&chat, &model)?;
                    bill.reserve(Most::of(&chat, request["max_tokens"].as_u64()))?;
                    let body = request.to_string();
                    PutQuestion::Http { path: "/v1/messages", body: memory.keep(body) }
                }
            };
            let reshape = Box::new(BilledMessages { chat: ChatFromMessages::new(stamp, &chat), bill });
            Ok(Put { question, reshape, thinking: thinking_note(&chat), prompt })
        }
        ProviderKind::OpenAi => {
            let thinking = for_provider(&mut chat, is_own)?;
            if is_translated && !is_own {
                drop_thoughts(&mut chat);
            }
            // OpenAI refuses unknown options.
            if let Some(options) = chat.get_mut("stream_options").and_then(Value::as_object_mut).filter(|_| !is_own) {
                options.remove("continuous_usage_stats");
            }
            // Providers express "no limit" by leaving the field out.
            for name in ["max_completion_tokens", "max_tokens"] {
                if chat.get(name).and_then(Value::as_i64).is_some_and(|limit| limit < 0) {
                    chat.remove(name);
                }
            }
            let named = || ["max_completion_tokens", "max_tokens"].iter().find_map(|name| chat.get(*name)?.as_u64());
            // Embeddings have no answer tokens.
            let answer = if path == "/v1/embeddings" { Some(0) } else { named() };
            bill.reserve(Most::of(&chat, answer))?;
            // The cost is computed from the counts, so they are requested if there is a price.
            let hide_usage = is_stream && bill.price.is_some() && !chat.contains_key("stream_options");
            let reshape = Box::new(BilledChat::new(bill, &chat, hide_usage));
            chat.insert("model".to_owned(), json!(model));
            if hide_usage {
                chat.insert("stream_options".to_owned(), json!({ "include_usage": true }));
            }
            let body = memory.keep(Value::Object(chat).to_string());
            Ok(Put { question: PutQuestion::Http { path, body }, reshape, thinking, prompt })
        }
    }
}
