//! Texts as the model was trained on them: the speaker's number in brackets, then the words, between two marks.

use std::path::Path;

use model_boss_engine::text::{Text, Tokenizer};

use super::csm_spec::CsmTokens;
use crate::error::ModelError;
use crate::speech::config::malformed;

/// The words of a text as tokens.
pub(super) struct CsmPrompt {
    tokenizer: Tokenizer,
    begin: u32,
    end: u32,
}

impl CsmPrompt {
    /// Reads the tokenizer in a folder.
    pub(super) fn read(folder: &Path, tokens: &CsmTokens) -> Result<Self, ModelError> {
        let text = Text::vocabulary_alone(folder).map_err(|error| malformed(error.to_string()))?;
        let mark = |name: &str| {
            let missing = || malformed(format!("the tokenizer has no {name} below {}", tokens.words));
            text.tokenizer.id(name).filter(|id| (*id as usize) < tokens.words).ok_or_else(missing)
        };
        let (begin, end) = (mark("<|begin_of_text|>")?, mark("<|end_of_text|>")?);
        Ok(Self { tokenizer: text.tokenizer, begin, end })
    }

    /// The tokens of some words. The marks of the model cannot be spelled.
    pub(super) fn words(&self, text: &str) -> Result<Vec<u32>, String> {
        let text = text.trim().replace("<|", "< |");
        if text.is_empty() {
            return Ok(Vec::new());
        }
        // A bracket comes before them, which is no part of any word's token.
        self.tokenizer.encode_rendered(&text).map_err(|error| error.to_string())
    }

    /// The tokens of words of a speaker.
    pub(super) fn spoken(&self, speaker: usize, words: &[u32]) -> Result<Vec<u32>, String> {
        let name = self.tokenizer.encode_rendered(&format!("[{speaker}]")).map_err(|error| error.to_string())?;
        Ok([&[self.begin], name.as_slice(), words, &[self.end]].concat())
    }
}
