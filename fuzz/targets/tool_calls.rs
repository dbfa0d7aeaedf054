//! Answers with and without calls of tools, in every format: a parser never panics, and pieces change nothing.
#![no_main]

use std::collections::BTreeMap;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use model_boss_engine::tools::{ToolEvent, ToolFormat, ToolParser};

const FORMATS: [ToolFormat; 13] = [
    ToolFormat::Hermes,
    ToolFormat::QwenCoder,
    ToolFormat::Llama,
    ToolFormat::MistralList,
    ToolFormat::MistralNamed,
    ToolFormat::Phi,
    ToolFormat::DeepSeekFenced,
    ToolFormat::DeepSeek,
    ToolFormat::Glm,
    ToolFormat::Harmony,
    ToolFormat::Granite,
    ToolFormat::Command,
    ToolFormat::Generic,
];

fn read<'a>(format: ToolFormat, pieces: impl Iterator<Item = &'a str>) -> (String, String, Vec<(String, String)>) {
    let mut parser = ToolParser::new(format, Arc::new(BTreeMap::new()));
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
    let format = FORMATS[usize::from(*which) % FORMATS.len()];
    let characters = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]);
    assert_eq!(read(format, std::iter::once(text)), read(format, characters));
});
