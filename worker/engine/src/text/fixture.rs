//! Small vocabularies for tests, made in code.

use serde_json::{Value, json};

use super::tokenizer::Tokenizer;
use super::vocabulary::SpecialTokens;
#[cfg(test)]
use super::vocabulary::{Vocabulary, VocabularyFacts};

/// GPT-2's spelling of a byte.
fn spell(byte: u8) -> char {
    let others = (0..=255_u8).filter(|b| !matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff));
    match (0x100..).zip(others).find(|(_, other)| *other == byte) {
        Some((code, _)) => char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER),
        None => char::from(byte),
    }
}

fn added(id: u32, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
           "special": special})
}

/// A byte-level `tokenizer.json`. Token N is the byte N for N below 256. Then come `<s>`, `</s>`, `<|im_start|>` and
/// `<|im_end|>`. The last are `<think>` and `</think>`, which are added but not special.
pub(crate) fn byte_level_json() -> Vec<u8> {
    let vocab: serde_json::Map<String, Value> =
        (0..=255_u8).map(|byte| (spell(byte).to_string(), json!(byte))).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [
            added(256, "<s>", true), added(257, "</s>", true), added(258, "<|im_start|>", true),
            added(259, "<|im_end|>", true), added(260, "<think>", false),
            added(261, "</think>", false),
        ],
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
    .to_string()
    .into_bytes()
}

/// The tokenizer of [`byte_level_json`]; `</s>` and `<|im_end|>` end a turn.
#[allow(clippy::expect_used)]
pub(crate) fn byte_level() -> Tokenizer {
    let special = SpecialTokens { bos: None, end: [257, 259].into(), add_bos: None };
    Tokenizer::from_json(&byte_level_json(), special).expect("the fixture is a tokenizer")
}

/// A vocabulary in the manner of SentencePiece: `▁` for spaces, bytes for unknown characters.
#[cfg(test)]
pub(crate) fn sentence_piece() -> Tokenizer {
    let mut vocab = serde_json::Map::new();
    for byte in 0..=255_u8 {
        vocab.insert(format!("<0x{byte:02X}>"), json!(vocab.len()));
    }
    for piece in ["<unk>", "\u{2581}", "h", "e", "l", "o", "w", "r", "d", "\u{2581}w", "or", "ld", "\u{2581}wor"] {
        vocab.insert(piece.to_owned(), json!(vocab.len()));
    }
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": {"type": "Sequence",
                       "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"}, replace(" ", "\u{2581}")]},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            replace("\u{2581}", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "vocab": vocab, "byte_fallback": true, "fuse_unk": true, "unk_token": "<unk>",
                  "merges": [["\u{2581}", "w"], ["o", "r"], ["l", "d"], ["\u{2581}w", "or"]]},
    });
    Tokenizer::from_json(json.to_string().as_bytes(), SpecialTokens::default()).unwrap()
}

/// A vocabulary of the 256 bytes, of these special tokens, and then of all pieces of `texts` with at most eight bytes.
/// The first of the special tokens ends a turn.
#[cfg(test)]
pub(crate) fn pieces(special: &[&str], texts: &[&str]) -> Vocabulary {
    let bytes = (0..=255_u8).map(|byte| (vec![byte], true));
    let named = special.iter().map(|name| (name.as_bytes().to_vec(), false));
    let parts = |text: &&str| -> Vec<Vec<u8>> {
        let bytes = text.as_bytes();
        let from = |start: usize| (start + 2..=bytes.len().min(start + 8)).map(move |end| bytes[start..end].to_vec());
        (0..bytes.len()).flat_map(from).collect()
    };
    let pieces: std::collections::BTreeSet<Vec<u8>> = texts.iter().flat_map(parts).collect();
    let longest = special.iter().map(|name| name.len()).max().unwrap_or(0).max(8);
    let special = SpecialTokens { bos: None, end: [256].into(), add_bos: None };
    let facts = VocabularyFacts { space_in_front: false, special, longest };
    Vocabulary::new(bytes.chain(named).chain(pieces.into_iter().map(|piece| (piece, true))), facts).unwrap()
}
