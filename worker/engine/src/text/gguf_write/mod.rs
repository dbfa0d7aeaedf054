//! A model folder's text side as GGUF metadata: the way back of [`super::gguf::GgufVocabulary::read`]. Writes
//! byte-level vocabularies, which is what GGUF calls `gpt2`; knows no tensors.

use std::collections::BTreeMap;
use std::path::Path;

use model_boss_weights::gguf::{HeaderWriter, WriteError};
use serde_json::Value;

use super::gguf::pre_tokenizer::{self, Alphabet};
use crate::text::files::{self, Configs, TextError};
use crate::text::{SpecialTokens, Tokenizer, TokenizerError};

/// The numbers that the format has for kinds of tokens.
mod kind {
    pub(super) const NORMAL: i32 = 1;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER_DEFINED: i32 = 4;
    pub(super) const UNUSED: i32 = 5;
}

/// Names under which a reader finds a model's way to cut words, one for each way.
const NAMES: [&str; 11] = [
    "gpt-2",
    "llama-bpe",
    "qwen2",
    "dbrx",
    "qwen35",
    "gpt-4o",
    "tekken",
    "starcoder",
    "deepseek-v3",
    "seed-coder",
    "bloom",
];

/// The reason why a vocabulary cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteVocabularyError {
    /// The files cannot be read.
    #[error(transparent)]
    Files(#[from] TextError),
    /// `tokenizer.json` cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// GGUF has no words for it.
    #[error("the tokenizer cannot be written as GGUF: {0}")]
    Unsupported(String),
    /// The header refused a key.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Writes the vocabulary and the chat templates of a model folder. The embedding has `rows`; numbers without a token
/// are filled up.
pub fn write_vocabulary(folder: &Path, rows: usize, header: &mut HeaderWriter) -> Result<(), WriteVocabularyError> {
    let configs = Configs::read(folder)?;
    let json = files::tokenizer_json(folder)?;
    let file: Value = serde_json::from_slice(&json)
        .map_err(|source| TextError::Json { path: folder.join("tokenizer.json"), source })?;
    let tokenizer = Tokenizer::from_json(&json, SpecialTokens::default())?;
    let special = configs.special_tokens(&tokenizer);
    let tokenizer = tokenizer.with_special(special);

    header.set("tokenizer.ggml.model", "gpt2")?;
    header.set("tokenizer.ggml.pre", way_to_cut(&file)?)?;
    let (spellings, kinds) = tokens(&file, &tokenizer, rows)?;
    header.set("tokenizer.ggml.tokens", &spellings[..])?;
    header.set("tokenizer.ggml.token_type", &kinds[..])?;
    header.set("tokenizer.ggml.merges", &merges(&file["model"])?[..])?;

    let special = tokenizer.special();
    let mut end = special.end.iter().copied().collect::<Vec<_>>();
    // The settings' own `eos` first: what a document ends with.
    end.sort_by_key(|id| Some(*id) != configs.spelled("eos_token", &tokenizer));
    let padding = configs.spelled("pad_token", &tokenizer);
    let ids = [("bos", special.bos), ("eos", end.first().copied()), ("eot", end.get(1).copied()), ("padding", padding)];
    for (name, id) in ids {
        if let Some(id) = id {
            header.set(&format!("tokenizer.ggml.{name}_token_id"), &id)?;
        }
    }
    let begins = tokenizer.encode_prompt("a")?.first().copied();
    header.set("tokenizer.ggml.add_bos_token", &(special.bos.is_some() && begins == special.bos))?;
    for (name, template) in configs.chat_templates(folder)? {
        let key = match name.as_str() {
            "default" => "tokenizer.chat_template".to_owned(),
            name => format!("tokenizer.chat_template.{name}"),
        };
        header.set(&key, &template)?;
    }
    Ok(())
}

/// A vocabulary of `size` tokens that cuts words as Qwen does and means nothing: the bytes, pairs and triples of them,
/// and ChatML's marks. For models of random weights.
pub fn write_synthetic_vocabulary(size: usize, header: &mut HeaderWriter) -> Result<(), WriteVocabularyError> {
    const MARKS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    let plain = size.saturating_sub(MARKS.len());
    let (mut spellings, merges) = synthetic_merges(plain).ok_or_else(|| {
        WriteVocabularyError::Unsupported(format!("a synthetic vocabulary of {size} tokens is too small or too large"))
    })?;
    spellings.extend(MARKS.map(str::to_owned));
    let kinds: Vec<i32> = (0..size).map(|id| if id < plain { kind::NORMAL } else { kind::CONTROL }).collect();
    header.set("tokenizer.ggml.model", "gpt2")?;
    header.set("tokenizer.ggml.pre", "qwen2")?;
    header.set("tokenizer.ggml.tokens", &spellings[..])?;
    header.set("tokenizer.ggml.token_type", &kinds[..])?;
    header.set("tokenizer.ggml.merges", &merges[..])?;
    let id = |mark: usize| u32::try_from(plain + mark).unwrap_or(u32::MAX);
    header.set("tokenizer.ggml.eos_token_id", &id(2))?;
    header.set("tokenizer.ggml.padding_token_id", &id(0))?;
    header.set("tokenizer.ggml.add_bos_token", &false)?;
    let template = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    header.set("tokenizer.chat_template", template)?;
    Ok(())
}

/// `count` spellings, and the merges that lead to them. `None` where bytes alone are more, or triples are not enough.
fn synthetic_merges(count: usize) -> Option<(Vec<String>, Vec<String>)> {
    // A space and the letters first, so that small vocabularies have words of them.
    let first = |byte: &u8| !matches!(byte, b' ' | b'a'..=b'z');
    let mut bytes: Vec<u8> = (0..=u8::MAX).collect();
    bytes.sort_by_key(|byte| (first(byte), *byte));
    let alphabet: Vec<char> = bytes.into_iter().map(spelled).collect();
    let mut spellings: Vec<String> = alphabet.iter().map(char::to_string).collect();
    let mut merges = Vec::new();
    let missing = count.checked_sub(spellings.len())?;
    let pairs = (0..alphabet.len()).flat_map(|n| (0..n).map(move |i| (i, n)).chain((0..=n).map(move |i| (n, i))));
    let triples = (0..alphabet.len()).flat_map(|n| {
        let ends = (0..=n).flat_map(move |i| (0..=n).map(move |j| (i, j, n)));
        let middles = (0..=n).flat_map(move |i| (0..n).map(move |j| (i, n, j)));
        let starts = (0..n).flat_map(move |i| (0..n).map(move |j| (n, i, j)));
        ends.chain(middles).chain(starts)
    });
    let words = pairs
        .map(|(i, j)| (String::from(alphabet[i]), alphabet[j]))
        .chain(triples.map(|(i, j, k)| (String::from_iter([alphabet[i], alphabet[j]]), alphabet[k])));
    for (left, right) in words.take(missing) {
        merges.push(format!("{left} {right}"));
        spellings.push(format!("{left}{right}"));
    }
    (spellings.len() == count).then_some((spellings, merges))
}

/// GPT-2's character for a byte: printable ones are themselves, the others follow from U+0100.
fn spelled(byte: u8) -> char {
    let other = match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => return char::from(byte),
        0..=0x20 => byte,
        0x7f..=0xa0 => byte - 0x7f + 0x21,
        0xad => 0x43,
    };
    char::from_u32(0x100 + u32::from(other)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The name under which GGUF knows the way a `tokenizer.json` cuts words.
fn way_to_cut(file: &Value) -> Result<&'static str, WriteVocabularyError> {
    let refuse = |what: String| Err(WriteVocabularyError::Unsupported(what));
    let model = &file["model"];
    let decoder = &file["decoder"]["type"];
    if model["type"].as_str().is_some_and(|kind| kind != "BPE") || decoder != "ByteLevel" {
        return refuse(format!("only byte-level BPE is; this one is {} with the decoder {decoder}", model["type"]));
    }
    match file["normalizer"]["type"].as_str() {
        // Readers of GGUF do without; ordinary texts are in this form.
        None | Some("NFC") => {}
        Some(other) => return refuse(format!("it changes texts first ({other})")),
    }
    let mut patterns = Vec::new();
    let steps = match file["pre_tokenizer"]["pretokenizers"].as_array() {
        Some(steps) => steps.as_slice(),
        None => std::slice::from_ref(&file["pre_tokenizer"]),
    };
    for step in steps {
        let isolates = step["behavior"] == "Isolated" && step["invert"] == false;
        match (step["type"].as_str(), step["pattern"]["Regex"].as_str()) {
            (Some("ByteLevel"), _) if step["add_prefix_space"] == true => {
                return refuse("it puts a space in front of every text".to_owned());
            }
            // Not saying is saying yes.
            (Some("ByteLevel"), _) if step["use_regex"] != false => patterns.push(GPT_2),
            (Some("ByteLevel"), _) => {}
            (Some("Split"), Some(pattern)) if isolates => patterns.push(pattern),
            (Some("Digits"), _) if step["individual_digits"] == true => patterns.push(r"\p{N}"),
            _ => return refuse(format!("it cuts words in an unknown way: {step}")),
        }
    }
    let whole_words = model["ignore_merges"] == true;
    let known = NAMES.into_iter().find(|name| {
        pre_tokenizer::rules(name).is_some_and(|rules| {
            rules.patterns == patterns && rules.ignore_merges == whole_words && rules.alphabet == Alphabet::Bytes
        })
    });
    known.map_or_else(|| refuse(format!("no name is known for the way it cuts words: {patterns:?}")), Ok)
}

use pre_tokenizer::GPT_2;

/// Spelling and kind of every token, by number.
fn tokens(file: &Value, tokenizer: &Tokenizer, rows: usize) -> Result<(Vec<String>, Vec<i32>), WriteVocabularyError> {
    let refuse = |what: String| WriteVocabularyError::Unsupported(what);
    let mut by_id: BTreeMap<usize, (String, i32)> = BTreeMap::new();
    let vocab = file["model"]["vocab"].as_object().ok_or_else(|| refuse("it has no vocabulary".to_owned()))?;
    let number = |value: &Value| value.as_u64().and_then(|id| usize::try_from(id).ok());
    for (spelling, id) in vocab {
        let id = number(id).ok_or_else(|| refuse(format!("token `{}` has no number", spelling.escape_debug())))?;
        if let Some((other, _)) = by_id.insert(id, (spelling.clone(), kind::NORMAL)) {
            return Err(refuse(format!(
                "`{}` and `{}` are both token {id}",
                other.escape_debug(),
                spelling.escape_debug()
            )));
        }
    }
    for added in file["added_tokens"].as_array().map_or(&[][..], Vec::as_slice) {
        let (Some(id), Some(spelling)) = (number(&added["id"]), added["content"].as_str()) else {
            return Err(refuse(format!("an added token has no number or no text: {added}")));
        };
        // The library numbers them itself, by their order.
        if tokenizer.id(spelling).map(|id| id as usize) != Some(id) {
            return Err(refuse(format!(
                "`{}` is numbered {id} but does not come at that place",
                spelling.escape_debug()
            )));
        }
        let kind = if added["special"] == true { kind::CONTROL } else { kind::USER_DEFINED };
        by_id.insert(id, (spelling.to_owned(), kind));
    }
    if let Some((id, _)) = by_id.last_key_value().filter(|(id, _)| **id >= rows) {
        return Err(refuse(format!("token {id} has no row in the embedding, which has {rows}")));
    }
    let all = (0..rows).map(|id| by_id.remove(&id).unwrap_or_else(|| (format!("[PAD{id}]"), kind::UNUSED)));
    Ok(all.unzip())
}

/// `left right`, from either of the two forms that the library writes.
fn merges(model: &Value) -> Result<Vec<String>, WriteVocabularyError> {
    let merges = model["merges"].as_array().map_or(&[][..], Vec::as_slice);
    let spelled = |merge: &Value| match merge {
        Value::String(merge) => Some(merge.clone()),
        Value::Array(pair) => match pair.as_slice() {
            [Value::String(left), Value::String(right)] => Some(format!("{left} {right}")),
            _ => None,
        },
        _ => None,
    };
    let bad = |merge: &Value| WriteVocabularyError::Unsupported(format!("{merge} is no merge"));
    merges.iter().map(|merge| spelled(merge).ok_or_else(|| bad(merge))).collect()
}

#[cfg(test)]
mod tests;
