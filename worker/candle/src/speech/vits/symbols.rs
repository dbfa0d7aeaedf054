//! From texts to symbols, as `VitsTokenizer` of `transformers` makes them: letters of the vocabulary, with a blank
//! between each two.

use std::collections::HashMap;
use std::path::Path;

use model_boss_weights::{SmallFileError, read_small_file};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::ModelError;
use crate::speech::config::malformed;

/// The limit on each file, in bytes.
const LONGEST: u64 = 1 << 20;

/// The symbol between two others.
const BLANK: u32 = 0;

/// The letters of a model.
pub(super) struct Symbols {
    letters: HashMap<String, u32>,
    /// Words of the vocabulary of which each is kept as it is, in their order.
    words: Vec<String>,
    settings: SymbolSettings,
    /// The symbol of letters that are not in the vocabulary, if there is one.
    unknown: Option<u32>,
}

/// The settings of `tokenizer_config.json`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
struct SymbolSettings {
    language: Option<String>,
    add_blank: bool,
    normalize: bool,
    phonemize: bool,
    is_uroman: bool,
    unk_token: TokenText,
    pad_token: TokenText,
}

/// A token as its text, or as an object with it.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum TokenText {
    Text(String),
    Object { content: String },
}

impl TokenText {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Object { content: text } => text,
        }
    }
}

impl Default for SymbolSettings {
    fn default() -> Self {
        let token = |text: &str| TokenText::Text(text.to_owned());
        Self {
            language: None,
            add_blank: true,
            normalize: true,
            phonemize: true,
            is_uroman: false,
            unk_token: token("<unk>"),
            pad_token: token("<pad>"),
        }
    }
}

fn file<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ModelError> {
    let bytes = read_small_file(path, LONGEST).map_err(|error| match error {
        SmallFileError::Read { path, source } => ModelError::ReadConfig { path, source },
        error => malformed(error.to_string()),
    })?;
    let read = |bytes: Vec<u8>| serde_json::from_slice(&bytes);
    bytes.map(read).transpose().map_err(|error| malformed(format!("{}: {error}", path.display())))
}

impl Symbols {
    /// Reads the files of a folder; the vocabulary may have so many symbols.
    pub(super) fn read(folder: &Path, vocabulary: usize) -> Result<Self, ModelError> {
        let letters: Option<serde_json::Map<String, serde_json::Value>> = file(&folder.join("vocab.json"))?;
        let letters =
            letters.ok_or_else(|| malformed("vocab.json is missing: it has the model's letters".to_owned()))?;
        let settings: SymbolSettings = file(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let mut known = HashMap::new();
        for (word, id) in &letters {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < vocabulary);
            let id = id.ok_or_else(|| malformed(format!("vocab.json: '{word}' has no number below {vocabulary}")))?;
            known.insert(word.clone(), id);
        }
        // A map of serde_json is in the order of the alphabet, and the reference looks in that of the file: of two
        // words that begin alike, the longer one is the one to keep.
        let special = [settings.unk_token.text(), settings.pad_token.text()].map(str::to_owned);
        let mut words: Vec<String> = known.keys().cloned().chain(special).filter(|word| !word.is_empty()).collect();
        words.sort_by_key(|word| std::cmp::Reverse(word.chars().count()));
        words.dedup();
        let unknown = known.get(settings.unk_token.text()).copied();
        Ok(Self { letters: known, words, settings, unknown })
    }

    /// The language that the model's files name.
    pub(super) fn language(&self) -> Option<&str> {
        self.settings.language.as_deref()
    }

    /// The symbols of a text; none where it has nothing that can be spoken.
    pub(super) fn of(&self, text: &str, phonemes: bool) -> Result<Vec<u32>, String> {
        let settings = &self.settings;
        if settings.phonemize && !phonemes {
            return Err(
                "this model reads phonemes, not letters: send 'phonemes': true with the text in the international \
                        phonetic alphabet, such as espeak-ng --ipa writes it"
                    .to_owned(),
            );
        }
        let mut text = if settings.normalize { self.in_lower_case(text) } else { text.to_owned() };
        if settings.language.as_deref() == Some("ron") {
            text = text.replace('ț', "ţ");
        }
        if settings.is_uroman && !text.is_ascii() {
            return Err("this model reads Latin letters only: romanise the text first, such as by uroman".to_owned());
        }
        if settings.phonemize {
            text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        } else if settings.normalize {
            let is_known = |letter: &char| self.letters.contains_key(letter.encode_utf8(&mut [0; 4]) as &str);
            let kept: String = text.chars().filter(is_known).collect();
            kept.trim().clone_into(&mut text);
        }
        let mut symbols = Vec::new();
        for letter in text.chars() {
            let known = self.letters.get(letter.encode_utf8(&mut [0; 4]) as &str).copied();
            let Some(symbol) = known.or(self.unknown) else {
                return Err(format!("the model's vocabulary has no '{}'", letter.escape_debug()));
            };
            if settings.add_blank {
                symbols.push(BLANK);
            }
            symbols.push(symbol);
        }
        if settings.add_blank && !symbols.is_empty() {
            symbols.push(BLANK);
        }
        Ok(symbols)
    }

    /// Letters in lower case, but for words of the vocabulary.
    fn in_lower_case(&self, text: &str) -> String {
        let (mut lower, mut rest) = (String::with_capacity(text.len()), text);
        while let Some(letter) = rest.chars().next() {
            let word = self.words.iter().find(|word| rest.starts_with(word.as_str()));
            let length = match word {
                Some(word) => {
                    lower.push_str(word);
                    word.len()
                }
                None => {
                    lower.extend(letter.to_lowercase());
                    letter.len_utf8()
                }
            };
            rest = &rest[length..];
        }
        lower
    }
}
