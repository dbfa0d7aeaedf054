//! A written vocabulary is read again by this project's own reader.

use std::fs;

use model_boss_weights::gguf::Header;

use super::*;
use crate::text::{Specials, Text, fixture};

fn folder(file: &Value, settings: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
    fs::write(folder.path().join("tokenizer_config.json"), settings.to_string()).unwrap();
    folder
}

fn byte_level() -> Value {
    serde_json::from_slice(&fixture::byte_level_json()).unwrap()
}

fn written(folder: &Path, rows: usize) -> Result<Vec<u8>, WriteVocabularyError> {
    let mut header = HeaderWriter::new();
    write_vocabulary(folder, rows, &mut header)?;
    Ok(header.begin(Vec::new()).unwrap().finish().unwrap())
}

fn refused(file: &Value) -> String {
    written(folder(file, &Value::Null).path(), 300).unwrap_err().to_string()
}

#[test]
fn a_folder_and_the_file_made_of_it_have_the_same_text_side() {
    let mut file = byte_level();
    file["pre_tokenizer"]["use_regex"] = true.into();
    // One more token of the vocabulary itself; added tokens follow it.
    file["model"]["vocab"]["ab"] = 256.into();
    for added in file["added_tokens"].as_array_mut().unwrap() {
        added["id"] = (added["id"].as_u64().unwrap() + 1).into();
    }
    file["model"]["merges"] = serde_json::json!([["a", "b"]]);
    let settings = serde_json::json!({
        "eos_token": "</s>", "bos_token": "<s>", "add_bos_token": true, "pad_token": "<|im_start|>",
        "chat_template": [{"name": "default", "template": "{{ bos_token }}x"}, {"name": "tool_use", "template": "y"}]});
    let folder = folder(&file, &settings);
    fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [260, 258]}"#).unwrap();
    let path = folder.path().join("m.gguf");
    fs::write(&path, written(folder.path(), 270).unwrap()).unwrap();
    let (before, after) = (Text::load(folder.path(), None).unwrap(), Text::load(&path, None).unwrap());
    assert_eq!(before.tokenizer.special(), after.tokenizer.special());
    assert_eq!(after.tokenizer.vocab_size(), 270);
    for text in ["abba is ab", "<s>héllo\n\n  wörld 12</s>", "<think>x<|im_end|>", ""] {
        assert_eq!(before.tokenizer.encode_prompt(text).unwrap(), after.tokenizer.encode_prompt(text).unwrap());
        let tokens = after.tokenizer.encode_rendered(text).unwrap();
        let decoded = |text: &Text| text.vocabulary.text(&tokens, Specials::Hidden);
        assert_eq!(decoded(&before), decoded(&after));
    }
    let bytes = fs::read(&path).unwrap();
    let header = Header::parse(&bytes).unwrap();
    assert_eq!(header.need::<&str>("tokenizer.ggml.pre"), Ok("gpt-2"));
    assert_eq!(header.need::<&str>("tokenizer.chat_template.tool_use"), Ok("y"));
    assert_eq!(header.need::<u32>("tokenizer.ggml.eos_token_id"), Ok(258));
    assert_eq!(header.need::<u32>("tokenizer.ggml.eot_token_id"), Ok(260));
    assert_eq!(header.need::<u32>("tokenizer.ggml.padding_token_id"), Ok(259));
}

#[test]
fn a_way_to_cut_words_is_known_by_its_patterns() {
    for name in NAMES {
        let rules = pre_tokenizer::rules(name).unwrap();
        let mut file = byte_level();
        let split = |pattern: &&str| serde_json::json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let mut steps: Vec<Value> = rules.patterns.iter().map(split).collect();
        steps.push(serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}));
        file["pre_tokenizer"] = serde_json::json!({"type": "Sequence", "pretokenizers": steps});
        file["model"]["ignore_merges"] = rules.ignore_merges.into();
        assert_eq!(way_to_cut(&file).unwrap(), name);
    }
}

#[test]
fn what_gguf_has_no_words_for_is_named() {
    let with = |change: &dyn Fn(&mut Value)| {
        let mut file = byte_level();
        file["pre_tokenizer"]["use_regex"] = true.into();
        change(&mut file);
        file
    };
    assert!(refused(&with(&|file| file["pre_tokenizer"]["use_regex"] = false.into())).contains("no name is known"));
    assert!(refused(&with(&|file| file["decoder"] = Value::Null)).contains("byte-level"));
    assert!(
        refused(&with(&|file| file["normalizer"] = serde_json::json!({"type": "Lowercase"}))).contains("Lowercase")
    );
    assert!(refused(&with(&|file| file["pre_tokenizer"]["add_prefix_space"] = true.into())).contains("a space"));
    let moved = refused(&with(&|file| file["added_tokens"][0]["id"] = 280.into()));
    assert!(moved.contains("`<s>` is numbered 280"), "{moved}");
    let few = written(folder(&with(&|_| ()), &Value::Null).path(), 258).unwrap_err().to_string();
    assert!(few.contains("token 261 has no row"), "{few}");
    let empty = tempfile::tempdir().unwrap();
    assert!(written(empty.path(), 1).unwrap_err().to_string().contains("tokenizer.json is missing"));
}

#[test]
fn a_synthetic_vocabulary_is_one() {
    for size in [1_024, 151_936] {
        let mut header = HeaderWriter::new();
        write_synthetic_vocabulary(size, &mut header).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        fs::write(&path, header.begin(Vec::new()).unwrap().finish().unwrap()).unwrap();
        let text = Text::load(&path, None).unwrap();
        assert!(text.warnings.is_empty() && text.template.is_some(), "{:?}", text.warnings);
        assert_eq!(text.tokenizer.vocab_size(), size);
        let tokens = text.tokenizer.encode_prompt("hello wörld<|im_end|>").unwrap();
        assert_eq!(text.vocabulary.text(&tokens, Specials::Hidden), "hello wörld");
        assert!(tokens.len() < 12, "{tokens:?}");
        assert!(text.vocabulary.ends(tokens[tokens.len() - 1]));
    }
    assert!(write_synthetic_vocabulary(200, &mut HeaderWriter::new()).is_err());
}
