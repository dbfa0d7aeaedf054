//! Any bytes as a source of vocabularies and templates: a GGUF file, `tokenizer.json`, `tokenizer_config.json`, or a
//! chat template. A source that loads must encode, decode and render a fixed text, or return an error.
#![no_main]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use model_boss_engine::text::{Conversation, Detokenizer, Specials, Text, Vocabulary};

const WORDS: &str = "Hello, wörld 😀 <s>1234</s>\r\n\thi  <|im_end|>\u{0301}한 ";

/// A vocabulary to go with templates and settings.
const PLAIN: &str = r#"{"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "unk_token": "?",
    "vocab": {"?": 0, "Hello": 1, "<s>": 2}}}"#;

struct Folders {
    /// The folder with only the fuzzed `tokenizer.json`.
    vocabulary: PathBuf,
    /// The folder with the fuzzed `tokenizer_config.json` and a valid vocabulary.
    settings: PathBuf,
    gguf: PathBuf,
}

static FOLDERS: LazyLock<Folders> = LazyLock::new(|| {
    let root = std::env::temp_dir().join(format!("model-boss-fuzz-{}", std::process::id()));
    let folders =
        Folders { vocabulary: root.join("vocabulary"), settings: root.join("settings"), gguf: root.join("gguf") };
    for folder in [&folders.vocabulary, &folders.settings, &folders.gguf] {
        fs::create_dir_all(folder).expect("the folder for temporary files can be written to");
    }
    fs::write(folders.settings.join("tokenizer.json"), PLAIN).expect("a file can be written");
    folders
});

fuzz_target!(
    init: {
        // The fuzzer ends the process at every panic, even at one that is caught. Panics inside the tokenizers library
        // (and its dependencies) are caught by this repository's code; all others still end the process.
        let end = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let foreign = panic.location().is_some_and(|place| place.file().contains("/registry/"));
            if !foreign {
                end(panic);
            }
        }));
    },
    |input: &[u8]| {
        let write = |path: PathBuf| {
            fs::write(&path, input).expect("a file can be written");
            path
        };
        match input {
            [b'G', b'G', b'U', b'F', ..] => {
                let file = write(FOLDERS.gguf.join("m.gguf"));
                use_text(Text::load(&file, None));
            }
            [b'{', ..] => {
                write(FOLDERS.vocabulary.join("tokenizer.json"));
                use_text(Text::load(&FOLDERS.vocabulary, None));
                write(FOLDERS.settings.join("tokenizer_config.json"));
                use_text(Text::load(&FOLDERS.settings, None));
            }
            other => {
                let _ = fs::remove_file(FOLDERS.settings.join("tokenizer_config.json"));
                use_text(Text::load(&FOLDERS.settings, Some(&String::from_utf8_lossy(other))));
            }
        }
    }
);

fn use_text<E: std::error::Error>(loaded: Result<Text, E>) {
    let text = match loaded {
        Ok(text) => text,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let tokenizer = &text.tokenizer;
    let vocabulary = Arc::new(Vocabulary::from_wire(&text.vocabulary.to_wire()).expect("what was written is read"));
    let _ = vocabulary.at_least(WORDS);
    for encoded in [tokenizer.encode_prompt(WORDS), tokenizer.encode_rendered(WORDS), Ok(vec![0, 1, 2, 7, u32::MAX])] {
        let Ok(tokens) = encoded else { continue };
        let _ = (vocabulary.text(&tokens, Specials::Hidden), vocabulary.text(&tokens, Specials::Spelled));
        for prompt in [0, tokens.len() / 2] {
            let (prompt, tokens) = tokens.split_at(prompt);
            let mut answer = Detokenizer::new(Arc::clone(&vocabulary), prompt);
            for token in tokens {
                let _ = (answer.push(*token), vocabulary.bytes(*token), vocabulary.ends(*token));
            }
        }
    }
    let Some(template) = &text.template else { return };
    let messages = r#"[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello <b>"},
        {"role": "assistant", "content": "Hi", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1.5}}}]}]"#;
    let tools = r#"[{"type": "function", "function": {"name": "f", "parameters": {"a": null}}}]"#;
    let messages: Vec<_> = serde_json::from_str(messages).expect("messages");
    for tools in [None, Some(serde_json::from_str(tools).expect("tools"))] {
        let variables = BTreeMap::from([("enable_thinking".to_owned(), true.into())]);
        let conversation = Conversation { messages: messages.clone(), tools, variables, ..Conversation::default() };
        match template.render(&conversation) {
            Ok(prompt) if prompt.len() < 4096 => drop(tokenizer.encode_rendered(&prompt)),
            Ok(_) => {}
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
