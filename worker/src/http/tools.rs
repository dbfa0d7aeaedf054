//! The tools of a chat: their use, and their place in the prompt of a model whose template knows none.

use std::collections::{BTreeMap, BTreeSet};

use model_boss_engine::constraint::{CompiledGrammar, Grammar};
use model_boss_engine::text::TemplateValue;
use model_boss_engine::tools::{Tool, ToolChoice, ToolFormat, ToolPlan};
use model_boss_protocol::{ApiError, Remedy, beyond_worker};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::call_ids;
use super::error::ErrorAnswer;
use super::fields::RequestFields;
use super::form::{Form, compiled};
use super::message::{ChatMessage, Role};
use crate::state::Serving;
use crate::text::ToolFacts;

#[derive(Deserialize)]
#[serde(rename = "Tool")]
struct GivenTool {
    r#type: String,
    function: GivenFunction,
}

#[derive(Deserialize)]
struct GivenFunction {
    name: String,
    parameters: Option<Value>,
    strict: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected 'none', 'auto', 'required' or a named function")]
enum GivenChoice {
    Word(String),
    Object { r#type: String, function: Option<NamedFunction>, allowed_tools: Option<AllowedTools> },
}

#[derive(Deserialize)]
struct NamedFunction {
    name: String,
}

#[derive(Deserialize)]
struct AllowedTools {
    mode: String,
    tools: Vec<AllowedTool>,
}

#[derive(Deserialize)]
struct AllowedTool {
    function: NamedFunction,
}

const CHOICE: &str = "tool_choice";

/// A shorter context has no room for descriptions of tools in a question.
const LEAST_CONTEXT: usize = 1_024;

/// The tools that an answer may call, and whether it must; `None` where it may call none.
pub(super) fn plan(fields: &RequestFields<'_>, facts: &ToolFacts) -> Result<Option<ToolPlan>, ApiError> {
    let given: Vec<GivenTool> = fields.get("tools")?.unwrap_or_default();
    let wrong = |place: String, message: &str| Err(ApiError::invalid(place.clone(), format!("'{place}' {message}")));
    let mut tools = Vec::with_capacity(given.len());
    let mut names = BTreeSet::new();
    for (index, tool) in given.into_iter().enumerate() {
        if tool.r#type != "function" {
            return wrong(format!("tools[{index}].type"), "must be 'function'");
        }
        let GivenFunction { name, parameters, strict } = tool.function;
        let place = format!("tools[{index}].function.name");
        if name.is_empty() || name.len() > 256 || name.contains(|c: char| c.is_whitespace() || "<>{}[]\"".contains(c)) {
            return wrong(place, "must be a word of letters, digits, '_' and '-'");
        }
        if !names.insert(name.clone()) {
            return wrong(place, "is the name of another tool too");
        }
        let parameters =
            parameters.filter(|schema| !schema.is_null()).unwrap_or_else(|| Value::Object(Default::default()));
        let kind = parameters.get("type");
        if !parameters.is_object() || kind.is_some_and(|kind| kind != "object") {
            return wrong(format!("tools[{index}].function.parameters"), "must be the JSON schema of an object");
        }
        tools.push(Tool { name, parameters, strict: strict.unwrap_or(false) });
    }
    let Some((choice, allowed)) = choice(fields, &names)? else { return Ok(None) };
    if let Some(allowed) = allowed {
        tools.retain(|tool| allowed.contains(&tool.name));
    }
    if tools.is_empty() {
        return match choice {
            ToolChoice::Auto => Ok(None),
            // A manifest's choice is for requests with tools.
            _ if !fields.is_given(CHOICE) => Ok(None),
            _ => Err(ApiError::invalid(CHOICE, format!("'{CHOICE}' demands a call, and there are no 'tools'"))),
        };
    }
    // A function that is named is called once, as OpenAI says of it.
    let once = matches!(choice, ToolChoice::Named(_));
    let parallel = fields.get("parallel_tool_calls")?.unwrap_or(true) && !once;
    Ok(Some(ToolPlan { format: facts.format, tools, choice, parallel, answer: None, spells_thoughts: false }))
}

/// Whether a call must be made, and which tools may be called if not all; `None` where none may.
type AllowedCalls = (ToolChoice, Option<BTreeSet<String>>);

fn choice(fields: &RequestFields<'_>, names: &BTreeSet<String>) -> Result<Option<AllowedCalls>, ApiError> {
    let known = |name: String| {
        let message = format!("'{CHOICE}' names the tool '{name}', which is not among 'tools'");
        if names.contains(&name) { Ok(name) } else { Err(ApiError::invalid(CHOICE, message)) }
    };
    let word = |word: &str| match word {
        "none" => Ok(None),
        "auto" => Ok(Some(ToolChoice::Auto)),
        // Mistral's word.
        "required" | "any" => Ok(Some(ToolChoice::Required)),
        _ => {
            let message = format!("'{CHOICE}' must be 'none', 'auto', 'required' or a function");
            Err(ApiError::invalid(CHOICE, message))
        }
    };
    match fields.get(CHOICE)? {
        None => Ok(Some((ToolChoice::Auto, None))),
        Some(GivenChoice::Word(given)) => Ok(word(&given)?.map(|choice| (choice, None))),
        Some(GivenChoice::Object { r#type, function: Some(named), .. }) if r#type == "function" => {
            Ok(Some((ToolChoice::Named(known(named.name)?), None)))
        }
        Some(GivenChoice::Object { r#type, allowed_tools: Some(allowed), .. }) if r#type == "allowed_tools" => {
            let tools = allowed.tools.into_iter().map(|tool| known(tool.function.name)).collect::<Result<_, _>>()?;
            Ok(word(&allowed.mode)?.map(|choice| (choice, Some(tools))))
        }
        Some(GivenChoice::Object { .. }) => {
            let message = format!("'{CHOICE}' must be 'none', 'auto', 'required' or a function with its name");
            Err(ApiError::invalid(CHOICE, message))
        }
    }
}

/// Joins a demanded form with tools: an answer calls tools or has the form, which is returned.
pub(super) fn joined(plan: &mut ToolPlan, form: Option<Form>) -> Result<Option<Form>, ApiError> {
    match form {
        None => Ok(None),
        Some(Form { grammar: grammar @ (Grammar::JsonSchema(_) | Grammar::LenientJsonSchema(_)), field }) => {
            plan.answer = Some(grammar.clone());
            Ok(Some(Form { grammar, field }))
        }
        Some(Form { field, .. }) => {
            let remedy = Remedy::Instead("leave out one of them, or demand a JSON schema");
            Err(beyond_worker(&field, "hold an answer to this form beside 'tools'", remedy))
        }
    }
}

/// The grammar of an answer that may call these tools. `answer` is the form of one that calls none.
pub(super) async fn grammar(
    serving: &Serving,
    plan: &ToolPlan,
    answer: Option<Form>,
    begun: Option<String>,
) -> Result<Option<CompiledGrammar>, ErrorAnswer> {
    let markers = serving.forms.markers(&serving.text);
    let place = |index: usize| format!("tools[{index}].function.parameters");
    let form = |plan: &ToolPlan, field: String| match plan.grammar(markers) {
        Ok(grammar) => Ok(Some(Form { grammar, field })),
        Err(error) => Err(ApiError::invalid(place(error.tool), format!("'{}': {error}", place(error.tool)))),
    };
    // It may be at fault, and an answer that must call a tool has no part of it.
    compiled(serving, answer, None).await?;
    let all = form(plan, "tools".to_owned())?;
    match compiled(serving, all, begun).await {
        Err(all) if all.0.param.as_deref() == Some("tools") => {
            // The library does not say which schema is at fault, and names its keywords only where it is alone.
            for (index, tool) in plan.tools.iter().enumerate() {
                compiled(serving, Some(Form { grammar: tool.arguments(), field: place(index) }), None).await?;
                let alone = ToolPlan { tools: vec![tool.clone()], choice: ToolChoice::Required, ..plan.clone() };
                compiled(serving, form(&alone, place(index))?, None).await?;
            }
            Err(all)
        }
        other => other,
    }
}

/// The tools as a template gets them: as they came, keys in their order.
pub(super) fn shown(fields: &RequestFields<'_>, facts: &ToolFacts) -> Result<TemplateValue, ApiError> {
    let tools: Vec<TemplateValue> = fields.require("tools")?;
    if !facts.needs_described_tools {
        return Ok(tools.into());
    }
    let object =
        || TemplateValue::from_pairs([("type", "object".into()), ("properties", TemplateValue::from_pairs([]))]);
    let described = |tool: TemplateValue| {
        let Some(mut function) = tool.get("function") else { return tool };
        for (name, otherwise) in [("description", "".into()), ("parameters", object())] {
            if function.get(name).is_none() {
                function = function.with(name, otherwise);
            }
        }
        tool.with("function", function)
    };
    Ok(tools.into_iter().map(described).collect())
}

/// Fits the messages to a template that knows no tools, or wants them in its own place.
pub(super) fn fit(
    messages: &mut Vec<ChatMessage>,
    facts: &ToolFacts,
    offered: Option<&[Box<RawValue>]>,
    context_length: usize,
) {
    name_results(messages);
    call_ids::fit(messages, facts.format.ids());
    if !facts.shows_calls {
        messages.iter_mut().for_each(|message| message.say_calls(facts.format));
    }
    if !facts.shows_results {
        say_results(messages);
    }
    let Some(tools) = offered else { return };
    if facts.tools_in_message {
        let functions: Vec<Value> = tools
            .iter()
            .filter_map(|tool| serde_json::from_str::<Value>(tool.get()).ok()?.get("function").cloned())
            .collect();
        system(messages).tools = Some(Value::from(functions).to_string());
    }
    if facts.needs_instructions() {
        let instructions = instructions(facts.format, if facts.shows_tools { &[] } else { tools });
        let first = messages.iter_mut().find(|message| message.role == Some(Role::User));
        match first.filter(|_| facts.lacks_system) {
            // The built-in model keeps its words for the conversation: the grammar alone holds it to calls.
            Some(_) if context_length < LEAST_CONTEXT => {}
            Some(user) => user.say_first(&instructions),
            None => system(messages).say_more(&instructions),
        }
    }
}

/// Turns results of tools into messages of the user. Neighbours are joined: many templates want turns to alternate.
fn say_results(messages: &mut Vec<ChatMessage>) {
    let mut said: Vec<ChatMessage> = Vec::with_capacity(messages.len());
    let mut was_result = false;
    for mut message in messages.drain(..) {
        let is_result = message.role == Some(Role::Tool);
        message.say_results();
        let is_user = |message: &ChatMessage| message.role == Some(Role::User);
        // One without content is at fault, at its own place.
        let joins = (is_result || was_result) && is_user(&message) && message.content.is_some();
        match said.last_mut().filter(|last| joins && is_user(last)) {
            Some(last) => last.append(message),
            None => said.push(message),
        }
        was_result = is_result;
    }
    *messages = said;
}

/// Variables by which a template reads the tools in its own way.
pub(super) fn variables(format: ToolFormat, offered: Option<&[Box<RawValue>]>) -> Vec<(&'static str, String)> {
    if format != ToolFormat::FireFunction {
        return Vec::new();
    }
    let tools: Vec<&str> = offered.unwrap_or_default().iter().map(|tool| tool.get()).collect();
    let now = jiff::Zoned::now().strftime("%b %d %Y %H:%M:%S").to_string();
    vec![("functions", format!("[{}]", tools.join(", "))), ("datetime", now)]
}

/// The system message, which is made where there is none.
fn system(messages: &mut Vec<ChatMessage>) -> &mut ChatMessage {
    let is_system = |message: &ChatMessage| matches!(message.role, Some(Role::System | Role::Developer));
    if !messages.first().is_some_and(is_system) {
        messages.insert(0, ChatMessage::of(Role::System, String::new()));
    }
    &mut messages[0]
}

/// The words by which models learn the tools and the format of calls. They are Hermes' own.
fn instructions(format: ToolFormat, tools: &[Box<RawValue>]) -> String {
    let mut text = String::from("# Tools\n\nYou may call one or more functions to assist with the user query.\n\n");
    if !tools.is_empty() {
        text.push_str("You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n");
        for tool in tools {
            text.push_str(tool.get());
            text.push('\n');
        }
        text.push_str("</tools>\n\n");
    }
    text.push_str(match format {
        ToolFormat::Hermes | ToolFormat::Generic => {
            "For each function call, return a json object with function name and arguments within \
             <tool_call></tool_call> XML tags:\n"
        }
        _ => "For each function call, write:\n",
    });
    text + &format.calls(&[("<function-name>", "<args-json-object>")])
}

/// Gives results of tools the names of their calls, which some templates write.
fn name_results(messages: &mut [ChatMessage]) {
    let mut names = BTreeMap::new();
    for message in messages {
        for call in message.tool_calls.iter().flatten() {
            if let Some(id) = &call.id {
                names.insert(id.clone(), call.function.name.clone());
            }
        }
        if message.role == Some(Role::Tool) && message.name.is_none() {
            message.name = message.tool_call_id.as_ref().and_then(|id| names.get(id)).cloned();
        }
    }
}
