//! The fields of a request's body that scheduling needs, read without parsing the rest. The module also gives the same
//! body without model-boss's own fields (RC-2). All other fields are for the worker.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use model_boss_config::JsonLimits;

use model_boss_dialects::{LinkSearch, link_refused};
use model_boss_protocol::{ApiError, ClientId, ErrorCode, KeepAlive, Priority, THINKING_BUDGETS, Thinking};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::json::JsonShape;

/// The longest client id, in bytes.
const MAX_CLIENT_ID: usize = 128;
/// The most bytes of unknown fields' names that are repeated in a header.
const MAX_UNKNOWN: usize = 512;
/// The most fields of the body itself: OpenAI's longest request has fewer than fifty.
const MAX_FIELDS: usize = 1_024;
/// The longest field that is parsed into a value, here or for an engine: each of its bytes may take a hundred of
/// memory.
const MAX_FIELD: usize = 64 << 10;
/// The shortest deadline that can be requested.
const MIN_BUDGET_S: f64 = 0.001;
/// The longest deadline that can be requested.
const MAX_BUDGET_S: f64 = 7.0 * 86_400.0;

/// The fields that scheduling needs.
#[derive(Debug, Default, PartialEq)]
pub struct Peeked {
    /// The model, if named.
    pub model: Option<String>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// The client's own id.
    pub client: Option<ClientId>,
    /// The priority in the client's request.
    pub priority: Option<Priority>,
    /// The task that the request names.
    pub task: Option<String>,
    /// The time for which the model should stay loaded after the request.
    pub keep_alive: Option<KeepAlive>,
    /// The client's deadline, from the request's arrival.
    pub budget: Option<Duration>,
    /// Whether only the first rung of the ladder may serve the request.
    pub no_fallback: bool,
    /// The client's wish about thinking, in model-boss's own field.
    pub thinking: Option<Thinking>,
    /// Unknown fields that begin with `x_`, as a header value.
    pub unknown: Option<HeaderValue>,
    /// Whether the body holds fields that must not be forwarded.
    strip: bool,
}

/// The client of a request's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyClient {
    /// The client that the key is.
    pub client: ClientId,
    /// Whether the key may send requests of other clients, as an operator's may.
    pub may_name_others: bool,
}

/// Reads the fields in `body`. `head` is the request's, with the [`KeyClient`] of its key among the extensions. A body
/// with links is refused.
pub fn peek(body: &[u8], head: &Parts, limits: JsonLimits) -> Result<Peeked, ApiError> {
    let (peeked, link) = peek_with_links(body, head, limits)?;
    match link {
        Some(place) => Err(refused_link(place)),
        None => Ok(peeked),
    }
}

/// The error for a link at this place of a body.
pub fn refused_link(place: String) -> ApiError {
    let message = link_refused(&place);
    ApiError::invalid(place, message)
}

/// The same of a body that may have links, with the place of the first one.
pub fn peek_with_links(body: &[u8], head: &Parts, limits: JsonLimits) -> Result<(Peeked, Option<String>), ApiError> {
    // Skipped fields would otherwise not be checked for valid UTF-8.
    let text = std::str::from_utf8(body).map_err(malformed)?;
    JsonShape::of(body, limits)?;
    let mut json = serde_json::Deserializer::from_str(text);
    let (fields, link) =
        json.deserialize_map(PeekedFields).and_then(|found| json.end().map(|()| found)).map_err(malformed)?;
    let mut peeked = Peeked::default();
    let mut unknown = String::new();
    for (name, value) in fields {
        peeked.strip |= is_ours(&name);
        peeked.take(&name, value, &mut unknown)?;
    }
    peeked.unknown = HeaderValue::from_str(&unknown).ok().filter(|value| !value.is_empty());
    peeked.fill_from(&head.headers)?;
    peeked.client = client_of(peeked.client, head.extensions.get())?;
    Ok((peeked, link))
}

/// The client of a request that names none in its body: that of its key, else the one in its header.
pub fn named_client(headers: &HeaderMap, key: Option<&KeyClient>) -> Result<Option<ClientId>, ApiError> {
    let mut peeked = Peeked::default();
    peeked.fill_from(headers)?;
    client_of(peeked.client, key)
}

/// The client of a request that names this one, and has this key. A key is a client: it cannot take another's name.
pub fn client_of(named: Option<ClientId>, key: Option<&KeyClient>) -> Result<Option<ClientId>, ApiError> {
    match (named, key) {
        (named, None) => Ok(named),
        (Some(named), Some(key)) if named == key.client || key.may_name_others => Ok(Some(named)),
        (Some(named), Some(key)) => {
            let message = format!(
                "this key is the client '{}', and the request names '{named}'; leave the name out, or use that client's \
                 key",
                key.client
            );
            Err(ApiError::new(ErrorCode::InsufficientScope, message).with_param("x_client_id"))
        }
        (None, Some(key)) => Ok(Some(key.client.clone())),
    }
}

impl Peeked {
    /// Whether the forwarded body differs from the received one.
    pub fn is_rewritten(&self, changes: &BodyChanges<'_>) -> bool {
        self.strip || !changes.are_none()
    }

    /// The body to forward: the same bytes, without model-boss's own fields and with those that `changes` adds.
    pub fn forwarded(&self, body: &Bytes, changes: &BodyChanges<'_>) -> Result<Bytes, ApiError> {
        if !self.is_rewritten(changes) {
            return Ok(body.clone());
        }
        let mut json = serde_json::Deserializer::from_slice(body);
        let rewrite = Rewrite { capacity: body.len() + changes.size(), changes };
        json.deserialize_map(rewrite).map(Bytes::from).map_err(malformed)
    }

    fn take(&mut self, name: &str, value: &RawValue, unknown: &mut String) -> Result<(), ApiError> {
        match name {
            "model" => self.model = read::<Option<String>>(name, value, "a text")?.filter(|model| !model.is_empty()),
            "stream" => self.stream = read::<Option<bool>>(name, value, "true or false")?.unwrap_or(false),
            "x_client_id" => {
                self.client =
                    read::<Option<String>>(name, value, "a text")?.map(|id| client_id(name, &id)).transpose()?;
            }
            "x_priority" => {
                self.priority = read(name, value, "a number from 0 to 9, or interactive, normal or batch")?;
            }
            "x_task" => self.task = read(name, value, "a text")?,
            "x_keep_alive" => self.keep_alive = read(name, value, KEEP_ALIVE)?,
            // model-boss's own spelling wins over Ollama's.
            "keep_alive" => {
                let plain = read(name, value, KEEP_ALIVE)?;
                self.keep_alive = self.keep_alive.or(plain);
            }
            "x_budget_s" => {
                self.budget = read::<Option<f64>>(name, value, "a number")?.map(|s| budget(name, s)).transpose()?;
            }
            "x_fallback" => {
                let word = read::<Option<String>>(name, value, "a text")?;
                self.no_fallback = word.map(|word| fallback(name, &word)).transpose()?.is_some();
            }
            "x_thinking" => {
                let said = read::<Option<serde_json::Value>>(name, value, "a value")?;
                self.thinking = said.map(|said| Thinking::of_field(name, &said)).transpose()?;
            }
            // An engine's adapter parses these fields, which are not model-boss's own.
            THINKING | EFFORT | TEMPLATE | TOOL_CHOICE => check_length(name, value)?,
            name if THINKING_BUDGETS.contains(&name) => check_length(name, value)?,
            _ => {
                if unknown.len() + name.len() < MAX_UNKNOWN {
                    if !unknown.is_empty() {
                        unknown.push_str(", ");
                    }
                    unknown.extend(name.chars().map(|c| if c.is_ascii_graphic() && c != ',' { c } else { '?' }));
                }
            }
        }
        Ok(())
    }

    /// Reads the same metadata from headers, for clients that cannot add fields. The body has precedence.
    fn fill_from(&mut self, headers: &HeaderMap) -> Result<(), ApiError> {
        fn parse<T: std::str::FromStr<Err: fmt::Display>>(name: &str, text: &str) -> Result<T, ApiError> {
            text.parse().map_err(|error: T::Err| ApiError::invalid(name, format!("'{name}': {error}")))
        }
        // One pass over the few headers that there are; each lookup by name would hash it.
        for (name, value) in headers {
            let name = name.as_str();
            if !OWN_HEADERS.contains(&name) {
                continue;
            }
            let text = value.to_str();
            let text = text.map_err(|_| ApiError::invalid(name, format!("the header '{name}' is not plain text")))?;
            let text = text.trim();
            match name {
                CLIENT_ID if self.client.is_none() => self.client = Some(client_id(name, text)?),
                PRIORITY if self.priority.is_none() => self.priority = Some(parse(name, text)?),
                TASK if self.task.is_none() => self.task = Some(text.to_owned()),
                KEEP_ALIVE_HEADER if self.keep_alive.is_none() => {
                    // A header cannot tell a number from a text: bare digits are seconds, as in JSON.
                    let seconds = text.parse().ok().and_then(|s: f64| serde_json::from_value(s.into()).ok());
                    self.keep_alive = Some(seconds.map_or_else(|| parse(name, text), Ok)?);
                }
                BUDGET if self.budget.is_none() => self.budget = Some(budget(name, parse(name, text)?)?),
                THINKING_HEADER if self.thinking.is_none() => self.thinking = Some(parse(name, text)?),
                FALLBACK => {
                    fallback(name, text)?;
                    self.no_fallback = true;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

const CLIENT_ID: &str = "x-client-id";
const PRIORITY: &str = "x-priority";
const TASK: &str = "x-task";
const KEEP_ALIVE_HEADER: &str = "x-keep-alive";
const BUDGET: &str = "x-budget-s";
const THINKING_HEADER: &str = "x-thinking";
const FALLBACK: &str = "x-fallback";
/// Headers that set a field which the body leaves out. The field has the same name, with `_` for each `-`.
pub const OWN_HEADERS: [&str; 7] = [CLIENT_ID, PRIORITY, TASK, KEEP_ALIVE_HEADER, BUDGET, THINKING_HEADER, FALLBACK];

const KEEP_ALIVE: &str = "seconds as a number, or a duration such as \"5m\"";

/// Whether a field of a body is model-boss's own, and is not forwarded.
pub fn is_own_field(name: &str) -> bool {
    is_ours(name)
}

fn is_ours(name: &str) -> bool {
    name.starts_with("x_") || name == "keep_alive"
}

fn read<'a, T: serde::Deserialize<'a>>(name: &str, value: &'a RawValue, expected: &str) -> Result<T, ApiError> {
    check_length(name, value)?;
    serde_json::from_str(value.get())
        .map_err(|error| ApiError::invalid(name, format!("'{name}' must be {expected}: {}", plain(&error))))
}

fn check_length(name: &str, value: &RawValue) -> Result<(), ApiError> {
    if value.get().len() <= MAX_FIELD {
        return Ok(());
    }
    Err(ApiError::invalid(name, format!("'{name}' is longer than {MAX_FIELD} bytes")))
}

fn client_id(name: &str, text: &str) -> Result<ClientId, ApiError> {
    if text.is_empty() || text.len() > MAX_CLIENT_ID || text.chars().any(char::is_control) {
        return Err(ApiError::invalid(name, format!("'{name}' must have 1 to {MAX_CLIENT_ID} printable characters")));
    }
    Ok(ClientId::from(text))
}

fn budget(name: &str, seconds: f64) -> Result<Duration, ApiError> {
    if (MIN_BUDGET_S..=MAX_BUDGET_S).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(ApiError::invalid(name, format!("'{name}' must be from {MIN_BUDGET_S} to {MAX_BUDGET_S} seconds")))
}

fn fallback(name: &str, word: &str) -> Result<(), ApiError> {
    if word == "none" { Ok(()) } else { Err(ApiError::invalid(name, format!("'{name}' can only be \"none\""))) }
}

fn malformed(error: impl fmt::Display) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, format!("the body is not a JSON object: {error}"))
}

/// The message without its position, which would be relative to the field.
fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

/// Collects the few fields that matter, and the position of the first link. Other fields are checked to be JSON and
/// skipped.
struct PeekedFields;

impl<'de> Visitor<'de> for PeekedFields {
    type Value = (Vec<(Cow<'de, str>, &'de RawValue)>, Option<String>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut fields, mut link, mut count) = (Vec::new(), None, 0);
        while let Some(PeekedName(name)) = map.next_key()? {
            count += 1;
            if count > MAX_FIELDS {
                return Err(serde::de::Error::custom(format_args!("it has more than {MAX_FIELDS} fields")));
            }
            if is_ours(&name) || READ.contains(&&*name) || THINKING_BUDGETS.contains(&&*name) {
                fields.push((name, map.next_value()?));
            } else if let Some(search) = LinkSearch::in_field(&name) {
                let within = map.next_value_seed(search)?;
                link = link.or_else(|| within.map(|place| format!("{name}{place}")));
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok((fields, link))
    }
}

/// The changes that a task makes to a body.
#[derive(Default)]
pub struct BodyChanges<'a> {
    /// Whether `model` is removed: the id of the chosen model is inserted once it is known.
    pub without_model: bool,
    /// Defaults for fields that the request omits or sets to `null`.
    pub defaults: Option<&'a BTreeMap<String, serde_json::Value>>,
    /// Whether models that can think do so, and for how long.
    pub thinking: Option<ThinkingSource>,
}

/// The source of a wish about thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThinkingSource {
    /// The request, in model-boss's own field: its other fields about thinking are ignored.
    Request(Thinking),
    /// The task: fields of the request about thinking win.
    Task(Thinking),
}

/// Two names of one field: a request that sets one of them gets no default for the other.
const SAME: [(&str, &str); 2] = [("max_tokens", "max_completion_tokens"), ("repetition_penalty", "repeat_penalty")];
/// The field of the wish about thinking that workers and dialects read. Its form is Anthropic's, whose API reads it
/// too.
const THINKING: &str = "thinking";
/// OpenAI's field for the effort of thinking.
const EFFORT: &str = "reasoning_effort";
/// The field with variables of chat templates, among them the switch of thinking.
const TEMPLATE: &str = "chat_template_kwargs";
/// OpenAI's field for the choice among tools.
const TOOL_CHOICE: &str = "tool_choice";
/// Fields that are read besides model-boss's own and the [`THINKING_BUDGETS`].
const READ: [&str; 6] = ["model", "stream", THINKING, EFFORT, TEMPLATE, TOOL_CHOICE];

impl BodyChanges<'_> {
    fn are_none(&self) -> bool {
        !self.without_model && self.defaults.is_none_or(BTreeMap::is_empty) && self.thinking.is_none()
    }

    /// The most bytes that are added; defaults come from an operator and are short.
    pub fn size(&self) -> usize {
        let defaults = self.defaults.into_iter().flatten();
        256 + defaults.map(|(name, value)| name.len() + value.to_string().len() + 4).sum::<usize>()
    }

    fn default_for(&self, name: &str) -> bool {
        self.defaults.is_some_and(|defaults| defaults.contains_key(name))
    }
}

/// Rewrites the object without model-boss's own fields and with a task's; values keep their bytes.
struct Rewrite<'a> {
    capacity: usize,
    changes: &'a BodyChanges<'a>,
}

impl Rewrite<'_> {
    /// Adds the task's fields that the request omits.
    fn add<E: serde::de::Error>(&self, body: &mut Vec<u8>, said: &OwnFields) -> Result<(), E> {
        for (name, value) in self.changes.defaults.into_iter().flatten() {
            let same = SAME.iter().find_map(|(a, b)| match name.as_str() {
                name if name == *a => Some(*b),
                name if name == *b => Some(*a),
                _ => None,
            });
            if !said.names.contains(name) && same.is_none_or(|same| !said.names.contains(same)) {
                field(body, name)?;
                serde_json::to_writer(&mut *body, value).map_err(E::custom)?;
            }
        }
        if let Some(thinking) = self.thinking(said) {
            field(body, THINKING)?;
            serde_json::to_writer(&mut *body, &thinking.to_field()).map_err(E::custom)?;
        }
        Ok(())
    }

    /// The wish about thinking to be added.
    fn thinking(&self, said: &OwnFields) -> Option<Thinking> {
        match self.changes.thinking? {
            ThinkingSource::Request(thinking) => Some(thinking),
            ThinkingSource::Task(_) if said.has_thinking() => None,
            // A template's switch only decides whether to think; the task still sets the budget.
            ThinkingSource::Task(thinking) => {
                Thinking::of_chat(None, said.template.as_ref(), None, Some(thinking)).ok().flatten()
            }
        }
    }
}

/// The request's own fields.
#[derive(Default)]
struct OwnFields {
    /// The names of those that are not `null`.
    names: BTreeSet<String>,
    /// The variables of the request's chat template.
    template: Option<serde_json::Value>,
}

impl OwnFields {
    /// Whether one of them says how long to think.
    fn has_thinking(&self) -> bool {
        [THINKING, EFFORT].into_iter().chain(THINKING_BUDGETS).any(|name| self.names.contains(name))
    }
}

/// Writes the beginning of a field: separator, name and colon.
fn field<E: serde::de::Error>(body: &mut Vec<u8>, name: &str) -> Result<(), E> {
    if body.len() > 1 {
        body.push(b',');
    }
    serde_json::to_writer(&mut *body, name).map_err(E::custom)?;
    body.push(b':');
    Ok(())
}

impl<'de> Visitor<'de> for Rewrite<'_> {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<u8>, A::Error> {
        let mut body = Vec::with_capacity(self.capacity);
        let mut said = OwnFields::default();
        body.push(b'{');
        while let Some(PeekedName(name)) = map.next_key()? {
            let value: &RawValue = map.next_value()?;
            if is_ours(&name) || (self.changes.without_model && name == "model") {
                continue;
            }
            // A field set to `null` gets the default, as an omitted one does.
            if value.get() == "null" && (self.changes.default_for(&name) || name == THINKING) {
                continue;
            }
            let is_wish = name == THINKING || THINKING_BUDGETS.contains(&&*name);
            if is_wish && matches!(self.changes.thinking, Some(ThinkingSource::Request(_))) {
                continue;
            }
            field(&mut body, &name)?;
            body.extend_from_slice(value.get().as_bytes());
            if name == TEMPLATE && self.changes.thinking.is_some() {
                said.template = serde_json::from_str(value.get()).ok();
            }
            let may_add = self.changes.defaults.is_some() || self.changes.thinking.is_some();
            if may_add && value.get() != "null" {
                said.names.insert(name.into_owned());
            }
        }
        self.add(&mut body, &said)?;
        body.push(b'}');
        Ok(body)
    }
}

/// A field's name, borrowed unless it contains escapes.
#[derive(serde::Deserialize)]
struct PeekedName<'a>(#[serde(borrow)] Cow<'a, str>);

/// The client id of requests that name none.
pub const ANONYMOUS: &str = "anonymous";

#[cfg(test)]
mod tests;
