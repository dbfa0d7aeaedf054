//! Prompts as tokens of T5: cut and filled to the length that a request has.

use model_boss_engine::text::{Text, Tokenizer};

use super::token_names::TokenNames;
use crate::error::ModelError;
use crate::pictures::component::PipelineFolder;
use crate::pictures::layers::misfit;

/// A tokenizer.
pub(in crate::pictures) struct T5Tokens {
    tokenizer: Tokenizer,
    fill: u32,
    end: u32,
}

impl T5Tokens {
    /// Reads a tokenizer's folder for an encoder with so many tokens.
    pub(in crate::pictures) fn read(
        folder: &PipelineFolder,
        component: &str,
        vocabulary: usize,
    ) -> Result<Self, ModelError> {
        let names = TokenNames::read(folder, component)?;
        let path = folder.folder(component);
        if !path.join("tokenizer.json").exists() {
            return Err(misfit(component, "there is no tokenizer.json"));
        }
        let tokenizer = Text::vocabulary_alone(&path).map_err(|error| misfit(component, error))?.tokenizer;
        let id = |name: &str, usual: &str| {
            let spelling = names.of(name).unwrap_or_else(|| usual.to_owned());
            let id = tokenizer.id(&spelling).filter(|id| (*id as usize) < vocabulary);
            id.ok_or_else(|| misfit(component, format!("'{spelling}' is not one of the encoder's {vocabulary} tokens")))
        };
        let (fill, end) = (id("pad_token", "<pad>")?, id("eos_token", "</s>")?);
        Ok(Self { tokenizer, fill, end })
    }

    /// So many tokens of a text; those behind the longest are left out, but for the last.
    pub(in crate::pictures) fn of(&self, text: &str, length: usize) -> Result<Vec<u32>, String> {
        let mut tokens = self.tokenizer.encode_prompt(text).map_err(|error| error.to_string())?;
        if tokens.len() > length {
            tokens.truncate(length.saturating_sub(1));
            tokens.push(self.end);
        }
        tokens.resize(length, self.fill);
        Ok(tokens)
    }
}
