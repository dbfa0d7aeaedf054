//! Prompts as CLIP's tokens: cut and filled to one length.

use std::path::Path;

use model_boss_engine::text::{SpecialTokens, Text, Tokenizer};
use model_boss_weights::read_small_file;
use serde_json::{Value, json};

use super::token_names::TokenNames;
use crate::error::ModelError;
use crate::pictures::component::PipelineFolder;
use crate::pictures::layers::misfit;

/// The limit on a file of the vocabulary in bytes.
const LONGEST: u64 = 16 << 20;

/// The tokens around a text in folders that name none.
const BEGIN: &str = "<|startoftext|>";
const END: &str = "<|endoftext|>";

/// The pieces of a text that are put into tokens by themselves (Radford et al., 2021, arXiv 2103.00020).
const PIECES: &str = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";

/// The longest text in tokens where the folder does not say it.
const USUAL_LENGTH: usize = 77;

/// A tokenizer and the length of its texts.
pub(in crate::pictures) struct ClipTokens {
    tokenizer: Tokenizer,
    length: usize,
    fill: u32,
    end: u32,
}

impl ClipTokens {
    /// Reads a tokenizer's folder for an encoder with so many tokens.
    pub(in crate::pictures) fn read(
        folder: &PipelineFolder,
        component: &str,
        vocabulary: usize,
    ) -> Result<Self, ModelError> {
        let names = TokenNames::read(folder, component)?;
        let named = |name: &str| names.of(name);
        let end_text = named("eos_token").unwrap_or_else(|| END.to_owned());
        let begin = named("bos_token").unwrap_or_else(|| BEGIN.to_owned());
        let path = folder.folder(component);
        let tokenizer = if path.join("tokenizer.json").exists() {
            Text::vocabulary_alone(&path).map_err(|error| misfit(component, error))?.tokenizer
        } else {
            let unknown = named("unk_token").unwrap_or_else(|| END.to_owned());
            of_pieces(&path, component, [&begin, &end_text, &unknown])?
        };
        let id = |spelling: &str| {
            let id = tokenizer.id(spelling).filter(|id| (*id as usize) < vocabulary);
            id.ok_or_else(|| misfit(component, format!("'{spelling}' is not one of the encoder's {vocabulary} tokens")))
        };
        let end = id(&end_text)?;
        let fill = named("pad_token").map_or(Ok(end), |fill| id(&fill))?;
        let length = names.setting("model_max_length").and_then(Value::as_f64).filter(|length| *length < 65_536.0);
        let length = length.map_or(USUAL_LENGTH, |length| length as usize);
        if length < 2 {
            return Err(misfit(component, format!("model_max_length is {length}")));
        }
        Ok(Self { tokenizer, length, fill, end })
    }

    /// The tokens of a text; those behind the longest are left out, but for the last.
    pub(in crate::pictures) fn of(&self, text: &str) -> Result<Vec<u32>, String> {
        let mut tokens = self.tokenizer.encode_prompt(text).map_err(|error| error.to_string())?;
        if tokens.len() > self.length {
            tokens.truncate(self.length - 1);
            tokens.push(self.end);
        }
        tokens.resize(self.length, self.fill);
        Ok(tokens)
    }

    /// Tokens of every text.
    pub(in crate::pictures) fn length(&self) -> usize {
        self.length
    }
}

/// A tokenizer of `vocab.json` and `merges.txt`.
fn of_pieces(folder: &Path, component: &str, [begin, end, unknown]: [&str; 3]) -> Result<Tokenizer, ModelError> {
    let read = |name: &str| {
        let bytes = read_small_file(&folder.join(name), LONGEST).map_err(|error| misfit(component, error))?;
        bytes.ok_or_else(|| misfit(component, format!("there is neither tokenizer.json nor {name}")))
    };
    let vocabulary: Value = serde_json::from_slice(&read("vocab.json")?).map_err(|error| misfit(component, error))?;
    let merges = String::from_utf8(read("merges.txt")?).map_err(|error| misfit(component, error))?;
    let merges: Vec<&str> =
        merges.lines().filter(|line| !line.starts_with("#version") && !line.trim().is_empty()).collect();
    let id = |token: &str| vocabulary.get(token).and_then(Value::as_u64).unwrap_or(0);
    let mark = |token: &str| {
        json!({"id": id(token), "content": token, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let mut marks = vec![mark(begin)];
    if end != begin {
        marks.push(mark(end));
    }
    let json = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": marks,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}, {"type": "Lowercase"},
        ]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PIECES}, "behavior": "Removed", "invert": true},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        ]},
        "post_processor": {"type": "RobertaProcessing", "sep": [end, id(end)], "cls": [begin, id(begin)],
            "trim_offsets": false, "add_prefix_space": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": "",
            "end_of_word_suffix": "</w>", "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary,
            "merges": merges},
    });
    let json = json.to_string();
    Tokenizer::from_json(json.as_bytes(), SpecialTokens::default()).map_err(|error| {
        use std::error::Error;
        let why = error.source().map_or_else(String::new, |source| format!(": {source}"));
        misfit(component, format!("{error}{why}"))
    })
}
