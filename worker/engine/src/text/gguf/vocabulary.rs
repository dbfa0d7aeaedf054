//! A GGUF file's vocabulary: the encoder of its kind, special tokens, chat templates.

use std::collections::BTreeMap;

use model_boss_weights::gguf::{Header, KeyError};

use super::encoder::Encoder;
use super::error::VocabularyError;
use super::pieces::VocabularyPieces;
use super::special::Special;
use super::{byte_pairs, pre_tokenizer, sentence_pieces, word_pieces};

/// The text-related metadata of a GGUF file.
#[derive(Debug)]
pub struct GgufVocabulary {
    /// Text to token ids and back.
    pub encoder: Encoder,
    /// The special tokens.
    pub special: Special,
    /// Chat templates by name; the usual one is `default`.
    pub templates: BTreeMap<String, String>,
    /// Bytes of the longest token's spelling.
    pub longest_spelling: usize,
    /// Warnings for the operator, such as an unknown pre-tokenizer that was replaced by the default one.
    pub warnings: Vec<String>,
}

impl GgufVocabulary {
    /// Reads the vocabulary of a file.
    pub fn read(header: &Header<'_>) -> Result<Self, VocabularyError> {
        let model: &str = header.need("tokenizer.ggml.model")?;
        if matches!(model, "none" | "no_vocab") {
            return Err(VocabularyError::NoVocabulary(model.to_owned()));
        }
        let pieces = VocabularyPieces::read(header)?;
        let mut warnings = Vec::new();
        let mut special = Special::read(header, model, &pieces, &mut warnings)?;
        let encoder = match model {
            "gpt2" | "gemma4" | "whitespace" => {
                let named = header.find::<&str>("tokenizer.ggml.pre")?.filter(|name| !name.is_empty());
                let rules = match (model, named) {
                    ("gemma4", _) => pre_tokenizer::rules("gemma4"),
                    ("whitespace", None) => pre_tokenizer::rules("whitespace"),
                    (_, Some(name)) => pre_tokenizer::rules(name),
                    (_, None) => {
                        warnings.push(
                            "the file names no pre-tokenizer (`tokenizer.ggml.pre`): the default one is used, and some \
                             texts may be cut into other tokens than the model was trained on"
                                .to_owned(),
                        );
                        Some(pre_tokenizer::DEFAULT)
                    }
                };
                let unknown = || VocabularyError::PreTokenizer(named.unwrap_or_default().to_owned());
                let rules = rules.ok_or_else(unknown)?;
                special.add_bos = special.add_bos_given.unwrap_or(rules.add_bos) || rules.always_bos;
                Encoder::Library(Box::new(byte_pairs::build(header, &pieces, &special, &rules)?))
            }
            "llama" => Encoder::Pieces(Box::new(sentence_pieces::merged(header, &pieces, &special)?)),
            "t5" => Encoder::Pieces(Box::new(sentence_pieces::likeliest(header, &pieces, &special)?)),
            "rwkv" => Encoder::Pieces(Box::new(sentence_pieces::longest(&pieces, &special)?)),
            "plamo2" => Encoder::Pieces(Box::new(sentence_pieces::plamo(&pieces, &special)?)),
            "bert" => Encoder::Library(Box::new(word_pieces::build(header, &pieces, &special)?)),
            other => return Err(VocabularyError::Model(other.to_owned())),
        };
        if special.add_bos && special.bos.is_none() {
            warnings.push("texts should begin with a bos token, but the file names none".to_owned());
            special.add_bos = false;
        }
        let longest_spelling = pieces.longest_spelling();
        Ok(Self { encoder, special, templates: templates(header)?, longest_spelling, warnings })
    }
}

/// `tokenizer.chat_template` is the usual template, `tokenizer.chat_template.NAME` are others.
fn templates(header: &Header<'_>) -> Result<BTreeMap<String, String>, KeyError> {
    const KEY: &str = "tokenizer.chat_template";
    let mut templates = BTreeMap::new();
    for (key, _) in header.metadata() {
        let name = match key.strip_prefix(KEY) {
            Some("") => "default",
            Some(rest) => match rest.strip_prefix('.') {
                Some(name) => name,
                None => continue,
            },
            None => continue,
        };
        templates.insert(name.to_owned(), header.need::<&str>(key)?.to_owned());
    }
    Ok(templates)
}
