//! `scripts/bench schema`: answers that keep to a JSON schema. The measurement has the wait for the first token under a
//! new schema, tokens per second with and without one, and the gaps of a free answer beside one under a new schema.

use std::time::{Duration, Instant};

use model_boss_tests::{Client, Event};
use serde_json::{Value, json};

use crate::table::{Table, milliseconds};

/// Entries of an answer; each has about twenty tokens without white space.
const ENTRIES: usize = 2;

/// One streamed answer.
struct Timed {
    /// From the request to the first text.
    first: Duration,
    /// Between two texts.
    gaps: Vec<Duration>,
    /// Tokens that the answer's usage counts.
    tokens: u64,
    text: String,
}

impl Timed {
    /// Tokens per second behind the first.
    fn rate(&self) -> f64 {
        self.tokens.saturating_sub(1) as f64 / self.gaps.iter().sum::<Duration>().as_secs_f64()
    }
}

/// One round of all rows: each door has its turn, our own first. Free answers have `tokens`.
pub(super) async fn round(doors: &[Client], round: usize, tokens: usize, table: &mut Table) {
    let (mut first, mut again, mut held, mut free) = ([None; 2], [None; 2], [None; 2], [None; 2]);
    let (mut beside, mut alone) = ([None; 2], [None; 2]);
    for (place, door) in doors.iter().enumerate() {
        let schema = schema(round);
        let [new, known] = [answer(*door, Some(&schema), 0).await, answer(*door, Some(&schema), 0).await];
        for timed in [&new, &known] {
            assert!(is_valid(&timed.text), "the answer does not keep to its schema: {}", timed.text);
        }
        first[place] = Some(milliseconds(new.first));
        again[place] = Some(milliseconds(known.first));
        held[place] = Some(known.rate());
        let without = answer(*door, None, tokens).await;
        free[place] = Some(without.rate());
        alone[place] = without.gaps.iter().max().copied().map(milliseconds);
        beside[place] = gap_beside(*door, &self::schema(round + 1_000), tokens).await.map(milliseconds);
    }
    table.add("first token under a schema not seen before: ms", first[0], first[1]);
    table.add("first token under the same schema again: ms", again[0], again[1]);
    table.add("tokens/s of an answer under a schema", held[0], held[1]);
    table.add("tokens/s of an answer without one", free[0], free[1]);
    let share = |place: usize| Some(held[place]? / free[place]?);
    table.add("speed under a schema over speed without", share(0), share(1));
    table.add("longest gap of an answer without schema, alone: ms", alone[0], alone[1]);
    table.add("the same beside an answer under a new schema: ms", beside[0], beside[1]);
}

/// The longest gap of a free answer while another one begins and goes on under a new schema.
async fn gap_beside(door: Client, schema: &Value, tokens: usize) -> Option<Duration> {
    let free = tokio::spawn(async move { answer(door, None, 2 * tokens).await });
    let held = answer(door, Some(schema), 0).await;
    assert!(is_valid(&held.text), "the answer does not keep to its schema: {}", held.text);
    free.await.unwrap().gaps.into_iter().max()
}

/// A schema whose names no other round has, so that nothing of it can be known. Every answer to it has an end.
fn schema(round: usize) -> Value {
    let name = |part: &str| format!("{part}{round}");
    let entry = json!({
        "type": "object",
        "properties": {
            name("status"): {"enum": ["open", "closed", "waiting"]},
            name("count"): {"type": "integer", "minimum": 0, "maximum": 999},
            name("urgent"): {"type": "boolean"},
            name("title"): {"type": "string", "maxLength": 12},
        },
        "required": [name("status"), name("count"), name("urgent"), name("title")],
        "additionalProperties": false,
    });
    json!({
        "type": "object",
        "properties": {"entries": {"type": "array", "items": entry, "minItems": ENTRIES, "maxItems": ENTRIES}},
        "required": ["entries"],
        "additionalProperties": false,
    })
}

/// Whether an answer is what every such schema asks for.
fn is_valid(text: &str) -> bool {
    let Ok(answer) = serde_json::from_str::<Value>(text) else { return false };
    let entries = answer["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
    entries.len() == ENTRIES && entries.iter().all(|entry| entry.as_object().is_some_and(|entry| entry.len() == 4))
}

/// A streamed answer, under a schema to its end or without one for `tokens`.
async fn answer(door: Client, schema: Option<&Value>, tokens: usize) -> Timed {
    let mut body = json!({
        "model": "a", "messages": [{"role": "user", "content": "List the tickets of today."}], "temperature": 0,
        "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 1_024,
    });
    match schema {
        Some(schema) => {
            let schema = json!({"name": "tickets", "strict": true, "schema": schema});
            body["response_format"] = json!({"type": "json_schema", "json_schema": schema});
        }
        None => {
            body["max_tokens"] = tokens.into();
            body["ignore_eos"] = true.into();
        }
    }
    let begun = Instant::now();
    let mut stream = door.stream("/v1/chat/completions", &body).await;
    assert!(stream.status.is_success(), "{}", stream.status);
    let mut timed = Timed { first: Duration::ZERO, gaps: Vec::new(), tokens: 0, text: String::new() };
    let mut last = None;
    while let Some(event) = stream.next().await {
        let Event::Data(chunk) = event else { continue };
        timed.tokens = chunk["usage"]["completion_tokens"].as_u64().unwrap_or(timed.tokens);
        let text = chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        if text.is_empty() {
            continue;
        }
        timed.text += text;
        let now = Instant::now();
        match last.replace(now) {
            None => timed.first = now.duration_since(begun),
            Some(before) => timed.gaps.push(now.duration_since(before)),
        }
    }
    timed
}
