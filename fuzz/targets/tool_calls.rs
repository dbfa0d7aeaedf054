//! Answers with and without calls of tools, in every format: a parser never panics, pieces change nothing, and
//! arguments that were written between tags are JSON, as far as they came.
#![no_main]

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use model_boss_engine::tools::{ToolEvent, ToolFormat, ToolParser};
use serde_json::{Value, json};

/// Values between tags are read by the types of a schema.
static SCHEMAS: LazyLock<Arc<BTreeMap<String, Value>>> = LazyLock::new(|| {
    let texts = json!({"type": "string", "maxLength": 3});
    let mixed = json!({"anyOf": [{"$ref": "#/$defs/a"}, {"type": ["null", "integer"]}, {"enum": [true, "b"]}]});
    let schema = json!({"type": "object", "properties": {"a": texts, "b": mixed, "city": texts}, "$defs": {"a": {"$ref": "#/$defs/a"}}});
    Arc::new(["f", "weather", "get_weather"].map(|name| (name.to_owned(), schema.clone())).into())
});

type Answer = (String, String, Vec<(String, String)>);

fn read<'a>(format: ToolFormat, pieces: impl Iterator<Item = &'a str>) -> Answer {
    let mut parser = ToolParser::new(format, Arc::clone(&SCHEMAS));
    let mut events: Vec<ToolEvent> = pieces.flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    let (mut text, mut thoughts, mut calls) = (String::new(), String::new(), Vec::<(String, String)>::new());
    for event in events {
        match event {
            ToolEvent::Text(more) => text.push_str(&more),
            ToolEvent::Thought(more) => thoughts.push_str(&more),
            ToolEvent::Begin { index, name } => {
                assert_eq!(index, calls.len());
                calls.push((name, String::new()));
            }
            ToolEvent::Arguments { index, piece } => calls[index].1.push_str(&piece),
        }
    }
    (text, thoughts, calls)
}

fuzz_target!(|data: &[u8]| {
    let Some((which, bytes)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let format = ToolFormat::ALL[usize::from(*which) % ToolFormat::ALL.len()];
    let characters = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]);
    let whole = read(format, std::iter::once(text));
    assert_eq!(whole, read(format, characters));
    assert_eq!(whole, read(format, pieces(text, *which).into_iter()));
    if !format.has_json_arguments() {
        for (name, arguments) in &whole.2 {
            let is_json = |text: &str| serde_json::from_str::<serde_json::Map<String, Value>>(text).is_ok();
            assert!(is_json(arguments) || is_json(&format!("{arguments}}}")), "{name}: {arguments}");
        }
    }
});

/// The text in pieces of different lengths.
fn pieces(text: &str, seed: u8) -> Vec<&str> {
    let (mut pieces, mut rest, mut length) = (Vec::new(), text, usize::from(seed));
    while !rest.is_empty() {
        length = (length * 5 + 3) % 17;
        let at = rest.ceil_char_boundary(length.max(1));
        pieces.push(&rest[..at]);
        rest = &rest[at..];
    }
    pieces
}
