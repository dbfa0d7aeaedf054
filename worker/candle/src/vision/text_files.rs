//! The settings of a tokenizer that a model of two towers needs: the token that fills texts, and how texts are written.

use std::path::Path;

use model_boss_engine::TextLetters;
use model_boss_weights::read_small_file;
use serde::Deserialize;
use serde_json::Value;

use super::tower_spec::{TextTowerSpec, TowerKind};
use crate::error::ModelError;
use crate::spec::ConfigJsonError;

/// The limits on files in bytes. A vocabulary of a quarter of a million words has 35 MiB.
const LONGEST_SETTINGS: u64 = 16 << 20;
const LONGEST_TOKENIZER: u64 = 128 << 20;

/// Tokens of SigLIP 2's texts, which its processor sets for all models.
const SIGLIP2_TOKENS: usize = 64;

/// How SigLIP's texts become equally long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextFill {
    /// Tokens of every text.
    pub(crate) length: usize,
    /// The token in the places that are left.
    pub(crate) token: u32,
    /// Whether these are in front of the text.
    pub(crate) in_front: bool,
    /// Whether no token sees these. Published models were trained with tokens that do.
    pub(crate) unseen: bool,
}

/// The facts of a folder about texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextFiles {
    pub(crate) fill: TextFill,
    pub(crate) letters: TextLetters,
    /// The token that ends every text, where the tokenizer does not write it.
    pub(crate) end: Option<u32>,
}

/// The fields of `tokenizer_config.json` that matter here.
#[derive(Default, Deserialize)]
struct TokenizerSettings {
    tokenizer_class: Option<String>,
    model_max_length: Option<f64>,
    model_input_names: Option<Vec<String>>,
    padding_side: Option<String>,
    do_lower_case: Option<bool>,
    pad_token: Option<Value>,
    eos_token: Option<Value>,
    #[serde(default)]
    added_tokens_decoder: serde_json::Map<String, Value>,
}

#[derive(Default, Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

impl TextFiles {
    pub(crate) fn read(folder: &Path, spec: &TextTowerSpec) -> Result<Self, ModelError> {
        let settings: TokenizerSettings =
            file(&folder.join("tokenizer_config.json"), LONGEST_SETTINGS)?.unwrap_or_default();
        let class = settings.tokenizer_class.as_deref().map(|class| class.trim_end_matches("Fast"));
        let (is_siglip, is_siglip2) = (spec.kind == TowerKind::Siglip, spec.kind == TowerKind::SiglipPatches);
        // The class for the type of model, unless the file names another one.
        let pieces = is_siglip && class.is_none_or(|class| class == "SiglipTokenizer");
        let letters = match (is_siglip2, pieces) {
            (true, _) => TextLetters::Small,
            (_, true) if settings.do_lower_case.unwrap_or(true) => TextLetters::Words,
            _ => TextLetters::AsWritten,
        };
        let own_length = settings.model_max_length.filter(|length| *length >= 1.0 && *length < 1e9);
        let own_length = if is_siglip2 { Some(SIGLIP2_TOKENS) } else { own_length.map(|length| length as usize) };
        let (mut pad, mut end) = (None, None);
        if spec.kind != TowerKind::Clip {
            let special = |token: &Option<Value>, otherwise: &str| {
                let content = token.as_ref().and_then(|token| token.as_str().or(token.get("content")?.as_str()));
                content.unwrap_or(otherwise).to_owned()
            };
            let pad_text = special(&settings.pad_token, if pieces { "</s>" } else { "<pad>" });
            let end_text = special(&settings.eos_token, "</s>");
            let decoder = settings.added_tokens_decoder.iter();
            let mut added: Vec<(u32, String)> = decoder
                .filter_map(|(id, token)| Some((id.parse().ok()?, token.get("content")?.as_str()?.to_owned())))
                .collect();
            let of = |added: &[(u32, String)], text: &str| added.iter().find(|(_, of)| of == text).map(|(id, _)| *id);
            if of(&added, &pad_text).is_none() {
                let tokenizer: TokenizerFile =
                    file(&folder.join("tokenizer.json"), LONGEST_TOKENIZER)?.unwrap_or_default();
                added.extend(tokenizer.added_tokens.into_iter().map(|token| (token.id, token.content)));
            }
            pad = of(&added, &pad_text);
            // T5's vocabulary, in which SigLIP's pieces are, has it at 1.
            end = pieces.then(|| of(&added, &end_text).unwrap_or(1));
        }
        let pad = pad.unwrap_or(spec.pad);
        let known = |token: u32| (token as usize) < spec.vocabulary;
        if spec.kind != TowerKind::Clip && !(known(pad) && end.is_none_or(known)) {
            let what = format!("the token {pad} that fills texts is not among {} tokens", spec.vocabulary);
            return Err(ModelError::Config(ConfigJsonError::Malformed(what)));
        }
        let front = match settings.padding_side.as_deref() {
            Some(side) => side == "left",
            None => is_siglip2 || class == Some("GemmaTokenizer"),
        };
        let names = settings.model_input_names;
        let fill = TextFill {
            length: own_length.unwrap_or(spec.positions).min(spec.positions),
            token: pad,
            in_front: front,
            unseen: names.is_none_or(|names| names.iter().any(|name| name == "attention_mask")),
        };
        Ok(Self { fill, letters, end })
    }
}

/// A file of JSON; none if it does not exist.
fn file<T: serde::de::DeserializeOwned>(path: &Path, longest: u64) -> Result<Option<T>, ModelError> {
    let Some(bytes) = bytes(path, longest)? else { return Ok(None) };
    let read = serde_json::from_slice(&bytes);
    read.map(Some)
        .map_err(|error| ModelError::Config(ConfigJsonError::Malformed(format!("{}: {error}", path.display()))))
}

/// A file's bytes; none if it does not exist.
pub(crate) fn bytes(path: &Path, longest: u64) -> Result<Option<Vec<u8>>, ModelError> {
    read_small_file(path, longest).map_err(|error| match error {
        model_boss_weights::SmallFileError::Read { path, source } => ModelError::ReadConfig { path, source },
        error => ModelError::Config(ConfigJsonError::Malformed(error.to_string())),
    })
}
