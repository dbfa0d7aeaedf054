//! `POST /v1/chat/completions`: messages to a prompt by the model's chat template, and the answer to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::HeaderMap;
use axum::response::Response;
use model_boss_engine::text::{ChannelPlan, Conversation, NoContent, TemplateValue, ThinkingPlan, date_variables};
use model_boss_engine::tools::{CallIds, ToolChoice, ToolFormat, ToolParser, ToolPlan, behind_spelled_thoughts};
use model_boss_protocol::{ApiError, THINKING_BUDGETS, THINKING_SWITCHES, Thinking};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::state::WorkerState;
use crate::text::{RenderQuestion, TextFacts};

use super::answer::ApiShape;
use super::body::reading;
use super::error::{ErrorAnswer, text_error};
use super::fields::RequestFields;
use super::form::{Form, compiled, form};
use super::generate::answer;
use super::images::{ChatAsked, ChatInput, ChatPrompt, SentImages};
use super::message::{ChatMessage, MessageContent, joined};
use super::native::told;
use super::options::{GenerateOptions, MOST_LOGPROBS};
use super::plan::AnswerPlan;
use super::tools;

/// Answers a conversation.
pub(super) async fn complete(
    State(worker): State<Arc<WorkerState>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ErrorAnswer> {
    let plan = prepare(&worker, body?).await?.with_headers(&headers)?;
    answer(&worker, worker.serving()?, plan).await
}

/// The prompt the model would see, without answering it.
pub(super) async fn apply_template(
    State(worker): State<Arc<WorkerState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Rendered>, ErrorAnswer> {
    let question = reading(&worker, body?, |worker, body| {
        let facts = &worker.serving()?.text.facts;
        let input = conversation(&RequestFields::read(body, None)?, worker, facts)?;
        Ok(RenderQuestion::new(input.conversation).map_err(|error| text_error(error, "messages", 0))?)
    });
    let question = question.await?;
    let serving = worker.serving()?;
    let prompt = serving.text.render(question).await;
    let prompt = prompt.map_err(|error| text_error(error, "messages", serving.info.context_length))?;
    Ok(Json(Rendered { prompt }))
}

/// A rendered chat template.
#[derive(Serialize)]
pub(super) struct Rendered {
    prompt: String,
}

/// A request without its prompt.
struct ChatDraft {
    asked: ChatAsked,
    options: GenerateOptions,
    logprobs: Option<usize>,
    form: Option<Form>,
    tools: Option<ToolPlan>,
    /// The form of answers that call no tool.
    answer: Option<Form>,
    /// The beginning of the answer, which the client wrote.
    begun: Option<String>,
}

/// From a body to work for the engine.
pub(super) async fn prepare(worker: &Arc<WorkerState>, body: Bytes) -> Result<AnswerPlan, ErrorAnswer> {
    let ChatDraft { asked, mut options, logprobs, form, tools, answer, begun } = reading(worker, body, draft).await?;
    let serving = worker.serving()?;
    options.look_up(serving).await?;
    let format = serving.text.facts.tools.format;
    let prompt = asked.prompt(worker);
    let grammar = async {
        match &tools {
            Some(plan) => tools::grammar(serving, plan, answer, begun).await,
            None => {
                let form = form.map(|form| match begun {
                    Some(_) => form,
                    None => {
                        Form { grammar: format.answer_in(form.grammar, serving.forms.markers(&serving.text)), ..form }
                    }
                });
                compiled(serving, form, begun).await
            }
        }
    };
    let (ChatPrompt { tokens, images, transcript }, grammar) = tokio::try_join!(prompt, grammar)?;
    (options.grammar, options.images) = (grammar, images.into());
    // Answers in channels are read with tools or without.
    let channels = || format.has_channels().then(|| ToolParser::new(format, Arc::default()));
    let parser = tools.as_ref().map(ToolPlan::parser).or_else(channels);
    options.calls = parser.map(|parser| (parser, serving.forms.markers(&serving.text).clone()));
    if transcript {
        options.stop.push(NEXT_TURN.to_owned());
    }
    let prompt: Arc<[u32]> = tokens.into();
    let works: Vec<_> =
        (0..options.choices).map(|choice| options.work(Arc::clone(&prompt), choice, logprobs)).collect();
    let verbose = told(worker, &works, &options);
    Ok(AnswerPlan {
        works,
        choices_per_prompt: options.choices,
        shape: ApiShape::Chat,
        stream: options.stream,
        usage: options.usage,
        short_ids: format.ids() == CallIds::Short,
        extras: options.extras,
        verbose,
    })
}

fn draft(worker: &WorkerState, body: &[u8]) -> Result<ChatDraft, ErrorAnswer> {
    let serving = worker.serving()?;
    let fields = RequestFields::read(body, Some(&worker.defaults))?;
    let mut options = GenerateOptions::read(&fields, serving.info.vocab_size, 1)?;
    options.adapter = serving.adapters.asked(&worker.spec.model, fields.model().as_deref())?;
    if fields.get::<String>("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::invalid("suffix", "'suffix' is for /v1/completions and /infill").into());
    }
    let logprobs = wanted_logprobs(&fields)?;
    let input = conversation(&fields, worker, &serving.text.facts)?;
    let begun_by_client = input.conversation.begun.clone();
    let wanted = thinking(&fields, worker)?;
    let budget = wanted.and_then(Thinking::budget);
    // The thoughts are over where the client began the answer, and white space behind its words is part of it.
    let tags = serving.text.facts.thinking.clone().filter(|_| begun_by_client.is_none());
    options.thinking = tags.map(|tags| ThinkingPlan { tags, budget });
    let ending = serving.text.facts.thought_ending.clone();
    let format = serving.text.facts.tools.format;
    let is_named = format.has_channels();
    options.channels = ending.zip(budget).map(|(ending, budget)| ChannelPlan { ending, is_named, budget });
    options.spelled_thoughts = serving.text.facts.spells_thoughts && begun_by_client.is_none();
    let context = serving.info.context_length;
    let begun = begun_by_client.as_deref().map(|begun| strip_opening(begun, format));
    let mut form = form(&fields)?;
    let mut tools = tools::plan(&fields, &serving.text.facts.tools)?;
    if form.is_none() && tools.is_none() && begun.is_none() && fields.is_given("tools") {
        // A model that may not call a tool says in words what it has to say.
        let marks = format.call_marks(serving.forms.markers(&serving.text));
        options.sampling.logit_bias.extend(marks.into_iter().map(|mark| (mark, f32::NEG_INFINITY)));
    }
    // Behind the beginning of a last message there are no calls.
    tools = tools.filter(|plan| begun.is_none() || !format.has_channels() || plan.choice != ToolChoice::Auto);
    let answer = tools.as_mut().and_then(|plan| tools::joined(plan, form.take()).transpose()).transpose()?;
    if options.spelled_thoughts && wanted.is_some_and(Thinking::is_on) {
        if let Some(plan) = &mut tools {
            plan.spells_thoughts = true;
        }
        form = form.map(|form| Form { grammar: behind_spelled_thoughts(form.grammar), ..form });
    }
    let asked = input.asked(context)?;
    Ok(ChatDraft { asked, options, logprobs, form, tools, answer, begun })
}

/// The text that a client began, without what is put in front of it.
fn strip_opening(begun: &str, format: ToolFormat) -> String {
    begun.strip_prefix(format.answer_opening()).unwrap_or(begun).to_owned()
}

fn wanted_logprobs(fields: &RequestFields<'_>) -> Result<Option<usize>, ApiError> {
    let wanted = fields.get::<bool>("logprobs")?.unwrap_or(false);
    let top = fields.whole(&["top_logprobs"], 0..=MOST_LOGPROBS)?;
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(ApiError::invalid("top_logprobs", "'top_logprobs' needs 'logprobs': true"));
    }
    Ok(wanted.then(|| usize::try_from(top.unwrap_or(0)).unwrap_or(0)))
}

/// The text that ends an answer of a model without a chat template.
const NEXT_TURN: &str = "\nuser:";

/// Reads and checks the conversation of a request.
pub(super) fn conversation(
    fields: &RequestFields<'_>,
    worker: &WorkerState,
    text: &TextFacts,
) -> Result<ChatInput, ApiError> {
    let messages: Vec<ChatMessage> = fields.require("messages")?;
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "'messages' is empty; at least one message is needed"));
    }
    let mut messages = messages;
    let begun = begun(fields, &mut messages)?;
    // They stay in the prompt where none may be called: the cache of the turns before has them.
    tools::plan(fields, &text.tools)?;
    let offered = fields.get::<Vec<Box<RawValue>>>("tools")?.filter(|tools| !tools.is_empty());
    messages.iter_mut().enumerate().for_each(|(index, message)| message.place = index);
    let context = worker.serving().map_or(usize::MAX, |serving| serving.info.context_length);
    tools::fit(&mut messages, &text.tools, offered.as_deref(), context);
    let mut images = SentImages::new(worker);
    let messages = messages.into_iter().map(|message| message.value(text, &mut images));
    let messages = messages.collect::<Result<_, _>>()?;
    let mut variables: BTreeMap<String, TemplateValue> = fields.get("chat_template_kwargs")?.unwrap_or_default();
    // An answer that has begun is behind the thoughts.
    let thinking = if begun.is_some() { Some(Thinking::Off) } else { thinking(fields, worker)? };
    if let Some(thinking) = thinking {
        for name in THINKING_SWITCHES {
            variables.entry(name.to_owned()).or_insert_with(|| thinking.is_on().into());
        }
        // Seed's template reads the budget of thinking.
        if let Some(tokens) = thinking.budget() {
            variables.entry("thinking_budget".to_owned()).or_insert_with(|| tokens.into());
        }
    }
    for (name, value) in tools::variables(text.tools.format, offered.as_deref()) {
        variables.entry(name.to_owned()).or_insert_with(|| value.into());
    }
    for (name, date) in date_variables() {
        variables.entry(name.to_owned()).or_insert_with(|| date.into());
    }
    // The variable that gpt-oss and others read.
    if let Some(effort) = fields.get::<String>("reasoning_effort")? {
        variables.entry("reasoning_effort".to_owned()).or_insert_with(|| effort.into());
    }
    let conversation = Conversation {
        messages,
        tools: offered.filter(|_| text.tools.shows_tools).map(|_| tools::shown(fields, &text.tools)).transpose()?,
        add_generation_prompt: begun.is_some() || fields.get("add_generation_prompt")?.unwrap_or(true),
        begun: begun.map(|begun| text.tools.format.answer_opening().to_owned() + &begun),
        variables,
        no_content: NoContent::Lenient,
    };
    Ok(ChatInput { conversation, images })
}

/// Removes and returns the text of a last message of the assistant. The answer continues it, as with llama-server and
/// Anthropic's API, unless `continue_final_message` forbids that.
fn begun(fields: &RequestFields<'_>, messages: &mut Vec<ChatMessage>) -> Result<Option<String>, ApiError> {
    const FLAG: &str = "continue_final_message";
    let wanted = fields.get::<bool>(FLAG)?;
    let may_go_on = messages.len() > 1 && messages.last().is_some_and(ChatMessage::may_go_on);
    if let ([.., before, _], true, None) = (messages.as_slice(), may_go_on, wanted)
        && before.may_go_on()
    {
        let message = format!(
            "two messages of the assistant are last, and which of them goes on is open; send one, or say it by '{FLAG}'"
        );
        return Err(ApiError::invalid("messages", message));
    }
    if wanted == Some(true)
        && fields.is_given("add_generation_prompt")
        && fields.get("add_generation_prompt")? == Some(true)
    {
        let message = format!("'{FLAG}' and 'add_generation_prompt' are both true; send one of them");
        return Err(ApiError::invalid(FLAG, message));
    }
    match wanted {
        Some(false) => Ok(None),
        Some(true) if !may_go_on => {
            let message = format!("'{FLAG}' needs a text of the assistant as the last message, behind another");
            Err(ApiError::invalid(FLAG, message))
        }
        _ if !may_go_on => Ok(None),
        _ => {
            let place = format!("messages[{}].content", messages.len() - 1);
            match messages.pop().and_then(|message| message.content) {
                Some(MessageContent::Text(text)) => Ok(Some(text)),
                Some(MessageContent::Parts(parts)) => joined(parts, &place).map(Some),
                None => Ok(None),
            }
        }
    }
}

/// Whether the model thinks, and for how long: the request's word, else the manifest's.
fn thinking(fields: &RequestFields<'_>, worker: &WorkerState) -> Result<Option<Thinking>, ApiError> {
    let field = |name| fields.get::<serde_json::Value>(name);
    let budget = fields.first_of::<i64>(&THINKING_BUDGETS)?.map(|(_, tokens)| match u32::try_from(tokens) {
        Ok(tokens) => tokens.into(),
        Err(_) => "on".into(),
    });
    let (said, template, effort) =
        (field("thinking")?.or(budget), field("chat_template_kwargs")?, field("reasoning_effort")?);
    Thinking::of_chat(said.as_ref(), template.as_ref(), effort.as_ref(), worker.spec.thinking)
}
