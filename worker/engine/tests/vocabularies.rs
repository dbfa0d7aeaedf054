//! Small vocabularies of every kind give the ids of the libraries that made them, and every id streams back whole.
//! `scripts/reference/vocabularies.py` writes the files.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model_boss_engine::text::{Detokenizer, Specials, Text};
use proptest::prelude::*;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vocabularies")
}

fn json<T: serde::de::DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&std::fs::read(folder().join(name)).unwrap()).unwrap()
}

/// The ids of each text by vocabulary; none where the reference reads a special token as text.
type ReferenceIds = BTreeMap<String, Vec<Option<Vec<u32>>>>;

#[test]
fn fa_3_every_kind_of_vocabulary_gives_the_reference_ids() {
    let texts: Vec<String> = json("texts.json");
    let reference: ReferenceIds = json("ids.json");
    assert!(reference.len() > 10);
    let mut failures = Vec::new();
    for (name, ids) in reference {
        let text = Text::vocabulary_alone(&folder().join(&name)).unwrap();
        assert!(text.warnings.is_empty(), "{name}: {:?}", text.warnings);
        for (input, ids) in texts.iter().zip(&ids) {
            let Some(ids) = ids else { continue };
            let ours = text.tokenizer.encode_rendered(input).unwrap();
            if ours != *ids {
                failures.push(format!("{name}: {input:?}\n  ours     {ours:?}\n  expected {ids:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} texts differ:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn fa_3_a_stream_of_any_tokens_joins_to_their_text_and_shows_no_half_character() {
    for name in json::<ReferenceIds>("ids.json").into_keys() {
        let table = Arc::new(Text::vocabulary_alone(&folder().join(&name)).unwrap().vocabulary);
        let count = u32::try_from(table.len()).unwrap();
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let tokens = prop::collection::vec(0..count, 0..30);
        runner
            .run(&tokens, |tokens| {
                let mut stream = Detokenizer::new(table.clone(), &[]).spelling(0..count);
                let joined: String = tokens.iter().map(|token| stream.push(*token)).collect();
                let whole = table.text(&tokens, Specials::Spelled);
                prop_assert!(whole.starts_with(&joined), "{} {:?} {:?}", name, joined, whole);
                let left = &whole[joined.len()..];
                prop_assert!(left.chars().all(|c| c == char::REPLACEMENT_CHARACTER), "{} {:?}", name, left);
                Ok(())
            })
            .unwrap();
    }
}
