//! Texts and descriptions as tokens.

use std::path::Path;

use model_boss_engine::text::{Text, Tokenizer};

use super::parler_spec::ParlerSpec;
use crate::error::ModelError;
use crate::speech::config::malformed;

/// The folder of the tokenizer of descriptions beside that of texts, for models whose two differ.
const OF_DESCRIPTIONS: &str = "description_tokenizer";

/// The most tokens of a description.
const LONGEST_DESCRIPTION: usize = 1024;

/// The tokenizers of a model.
pub(super) struct ParlerText {
    prompts: Tokenizer,
    /// None where it is the same.
    descriptions: Option<Tokenizer>,
    tokens: [usize; 2],
}

impl ParlerText {
    /// Reads the tokenizers in a folder.
    pub(super) fn read(folder: &Path, spec: &ParlerSpec) -> Result<Self, ModelError> {
        let read = |path: &Path| match Text::vocabulary_alone(path) {
            Ok(text) => Ok(text.tokenizer),
            Err(error) => Err(malformed(error.to_string())),
        };
        let prompts = read(folder)?;
        let own = folder.join(OF_DESCRIPTIONS);
        let descriptions = if own.exists() { Some(read(&own)?) } else { None };
        let tokens = [spec.prompt_tokens, spec.text.vocab_size];
        if descriptions.is_none() && tokens[0] != tokens[1] {
            return Err(malformed(format!(
                "texts have {} tokens and descriptions {}: put the tokenizer of descriptions into {OF_DESCRIPTIONS}/",
                tokens[0], tokens[1]
            )));
        }
        Ok(Self { prompts, descriptions, tokens })
    }

    /// The tokens of a text that is spoken.
    pub(super) fn prompt(&self, text: &str) -> Result<Vec<u32>, String> {
        let text = plain(text);
        if text.is_empty() { Ok(Vec::new()) } else { encoded(&self.prompts, &text, self.tokens[0]) }
    }

    /// The tokens of a description.
    pub(super) fn description(&self, text: &str) -> Result<Vec<u32>, String> {
        let tokens = encoded(self.descriptions.as_ref().unwrap_or(&self.prompts), &plain(text), self.tokens[1])?;
        if tokens.len() > LONGEST_DESCRIPTION {
            return Err(format!("{} tokens describe the voice; at most {LONGEST_DESCRIPTION} may", tokens.len()));
        }
        Ok(tokens)
    }
}

/// A text in which the marks of a tokenizer cannot be spelled.
fn plain(text: &str) -> String {
    text.trim().replace('<', "< ")
}

fn encoded(tokenizer: &Tokenizer, text: &str, tokens: usize) -> Result<Vec<u32>, String> {
    let ids = tokenizer.encode_prompt(text).map_err(|error| error.to_string())?;
    match ids.iter().find(|id| **id as usize >= tokens) {
        Some(id) => Err(format!("its token {id} is not one of the model's {tokens}")),
        None => Ok(ids),
    }
}
