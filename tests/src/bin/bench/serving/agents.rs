//! `scripts/bench agents`: eight agents at once, of ten turns in each round, whose conversations grow from round to
//! round. Each turn demands a call of one of three tools, and gives its result back.

use std::time::{Duration, Instant};

use model_boss_tests::{Client, Event};
use serde_json::{Value, json};

use crate::table::{Table, milliseconds};

/// Conversations at once.
pub(super) const AGENTS: usize = 8;
/// Turns of each of them in a round.
const TURNS: usize = 10;

/// One conversation at one door.
pub(super) struct Agent {
    number: usize,
    turns: usize,
    messages: Vec<Value>,
}

/// One turn.
struct Turn {
    /// From the request to the first part of the call or of a text.
    first: Duration,
    /// To its end.
    whole: Duration,
    /// To the first token, where the server says so: a call's head is some tokens.
    token: Option<f64>,
    is_valid: bool,
    prompt: u64,
    cached: u64,
    /// Tokens of the answer, and those that drafts foresaw.
    answered: u64,
    foreseen: u64,
}

impl Agent {
    pub(super) fn new(number: usize) -> Self {
        let system = "You are a careful assistant. Use the tools. Say nothing that the user did not ask for.";
        let said = format!("I am number {number}. Look after my house and my notes.");
        let messages = vec![json!({"role": "system", "content": system}), json!({"role": "user", "content": said})];
        Self { number, turns: 0, messages }
    }

    /// Asks for a call, and adds it to the conversation with a result.
    async fn turn(&mut self, door: Client) -> Turn {
        let body = json!({
            "model": "a", "messages": self.messages, "tools": tools(), "tool_choice": "required",
            "parallel_tool_calls": false, "temperature": 0, "max_tokens": 200, "stream": true, "cache_prompt": true,
            "stream_options": {"include_usage": true},
        });
        let begun = Instant::now();
        let mut stream = door.stream("/v1/chat/completions", &body).await;
        assert!(stream.status.is_success(), "{}", stream.status);
        let (mut first, mut name, mut arguments) = (None, String::new(), String::new());
        let (mut usage, mut foreseen, mut token) = (Value::Null, 0, None);
        while let Some(event) = stream.next().await {
            let Event::Data(chunk) = event else { continue };
            if chunk["usage"].is_object() {
                usage = chunk["usage"].clone();
            }
            foreseen = chunk["timings"]["draft_n_accepted"].as_u64().unwrap_or(foreseen);
            token = chunk["timings"]["prompt_ms"].as_f64().or(token);
            let delta = &chunk["choices"][0]["delta"];
            let function = &delta["tool_calls"][0]["function"];
            let has_text = delta["content"].as_str().is_some_and(|text| !text.is_empty());
            if has_text || function.is_object() {
                first.get_or_insert_with(|| begun.elapsed());
            }
            name += function["name"].as_str().unwrap_or_default();
            arguments += function["arguments"].as_str().unwrap_or_default();
        }
        let whole = begun.elapsed();
        let is_valid = is_valid(&name, &arguments);
        let id = format!("call{:02}{:04}", self.number, self.turns);
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        self.messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        let said = format!("done, entry {} of {}", self.turns * 37 % 100, self.number);
        self.messages.push(json!({"role": "tool", "tool_call_id": id, "content": said}));
        self.turns += 1;
        let count = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        Turn {
            first: first.unwrap_or(whole),
            whole,
            token,
            is_valid,
            prompt: count("/prompt_tokens"),
            cached: count("/prompt_tokens_details/cached_tokens"),
            answered: count("/completion_tokens"),
            foreseen,
        }
    }
}

/// The next turns of all agents at every door, our own first.
pub(super) async fn round(doors: &[Client], agents: &mut [Vec<Agent>], table: &mut Table) {
    let [mut median, mut late, mut whole, mut valid, mut found, mut new, mut foreseen] = [[None; 2]; 7];
    // The peer's time of a prompt is without that of waiting.
    let mut tokens: Vec<f64> = Vec::new();
    for (place, (door, agents)) in doors.iter().zip(agents.iter_mut()).enumerate() {
        let mut working = Vec::new();
        for mut agent in std::mem::take(agents) {
            let door = *door;
            working.push(tokio::spawn(async move {
                let mut turns = Vec::with_capacity(TURNS);
                for _ in 0..TURNS {
                    turns.push(agent.turn(door).await);
                }
                (agent, turns)
            }));
        }
        let mut turns = Vec::new();
        for task in working {
            let (agent, of_agent) = task.await.expect("no turn fails");
            agents.push(agent);
            turns.extend(of_agent);
        }
        if place == 0 {
            tokens = turns.iter().filter_map(|turn| turn.token).collect();
            tokens.sort_by(f64::total_cmp);
        }
        turns.sort_by_key(|turn| turn.first);
        let at = |share: usize| turns[(turns.len() - 1) * share / 100].first;
        median[place] = Some(milliseconds(at(50)));
        late[place] = Some(milliseconds(at(95)));
        whole[place] = Some(milliseconds(turns.iter().map(|turn| turn.whole).sum::<Duration>()) / turns.len() as f64);
        valid[place] = Some(turns.iter().filter(|turn| turn.is_valid).count() as f64 / turns.len() as f64);
        let prompts: u64 = turns.iter().map(|turn| turn.prompt).sum();
        let sum = |of: &dyn Fn(&Turn) -> u64| turns.iter().map(of).sum::<u64>() as f64;
        new[place] = Some(sum(&|turn| turn.prompt - turn.cached) / turns.len() as f64);
        foreseen[place] = Some(sum(&|turn| turn.foreseen) / sum(&|turn| turn.answered).max(1.0));
        found[place] = Some(turns.iter().map(|turn| turn.cached).sum::<u64>() as f64 / prompts.max(1) as f64);
    }
    let token = |share: usize| tokens.get(tokens.len().saturating_sub(1) * share / 100).copied();
    table.add("request to the first token, by the server itself, median: ms", token(50), None);
    table.add("first tokens, 95 of 100 turns within: ms", token(95), None);
    table.add("first tokens, the last: ms", token(100), None);
    table.add("request to the first part of a call, median: ms", median[0], median[1]);
    table.add("the same, 95 of 100 turns within: ms", late[0], late[1]);
    table.add("request to the end of the call, mean: ms", whole[0], whole[1]);
    table.add("calls that are valid: share", valid[0], valid[1]);
    table.add("tokens of the prompts found in the cache: share", found[0], found[1]);
    table.add("tokens of a prompt that are not: mean", new[0], new[1]);
    table.add("tokens of answers that drafts foresaw: share", foreseen[0], foreseen[1]);
}

fn tools() -> Value {
    let tool = |name: &str, about: &str, properties: Value| {
        let names: Vec<&String> = properties.as_object().expect("an object").keys().collect();
        let schema =
            json!({"type": "object", "required": names, "additionalProperties": false, "properties": properties});
        json!({"type": "function", "function": {"name": name, "description": about, "strict": true, "parameters": schema}})
    };
    json!([
        tool(
            "weather",
            "The weather of a city.",
            json!({"city": {"enum": ["Kyiv", "Rome", "Lagos"]}, "days": {"enum": [1, 2, 3]}})
        ),
        tool("lamp", "Switches a lamp.", json!({"room": {"enum": ["kitchen", "hall"]}, "on": {"type": "boolean"}})),
        tool(
            "note",
            "Keeps a note.",
            json!({"text": {"type": "string", "maxLength": 24}, "stars": {"type": "integer", "minimum": 1, "maximum": 5}})
        ),
    ])
}

/// Whether a call is one that the tools allow.
fn is_valid(name: &str, arguments: &str) -> bool {
    let Ok(Value::Object(given)) = serde_json::from_str::<Value>(arguments) else { return false };
    let tools = tools();
    let tool = tools.as_array().into_iter().flatten().find(|tool| tool["function"]["name"] == name);
    let Some(properties) = tool.and_then(|tool| tool["function"]["parameters"]["properties"].as_object()) else {
        return false;
    };
    given.len() == properties.len()
        && properties.iter().all(|(name, schema)| match (&given.get(name), schema["enum"].as_array()) {
            (None, _) => false,
            (Some(value), Some(words)) => words.contains(value),
            (Some(value), None) => match schema["type"].as_str() {
                Some("boolean") => value.is_boolean(),
                Some("integer") => value.as_i64().is_some_and(|stars| (1..=5).contains(&stars)),
                _ => value.as_str().is_some_and(|text| text.chars().count() <= 24),
            },
        })
}
