//! The special tokens of a GGUF file: which begin and end a text, and which end the model's turn.

use std::collections::BTreeSet;

use model_boss_weights::gguf::{Header, KeyError};

use super::pieces::{TokenKind, VocabularyPieces};

/// Special tokens by role. Ids lie in the vocabulary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Special {
    /// Begins a text. For `bert` the classifying token.
    pub bos: Option<u32>,
    /// Ends a document.
    pub eos: Option<u32>,
    /// The token for text that the vocabulary cannot express.
    pub unknown: Option<u32>,
    /// Stands between texts.
    pub separator: Option<u32>,
    /// Fills batches up.
    pub padding: Option<u32>,
    /// Hides a word.
    pub mask: Option<u32>,
    /// Every token that ends the model's turn.
    pub end: BTreeSet<u32>,
    /// Whether a text begins with `bos`.
    pub add_bos: bool,
    /// Whether a text ends with `eos`.
    pub add_eos: bool,
    /// Whether a text ends with `separator`.
    pub add_separator: bool,
    /// Tokens that steer the model: found in a prompt, never shown in an answer.
    pub control: BTreeSet<u32>,
    /// Tokens found in a text before anything else, and shown.
    pub user_defined: BTreeSet<u32>,
    /// Control tokens that swallow the white space behind them.
    pub strips_right: BTreeSet<u32>,
    /// Control tokens that swallow the white space in front of them.
    pub strips_left: BTreeSet<u32>,
    /// The file's own value of `add_bos`.
    pub(super) add_bos_given: Option<bool>,
}

/// Spellings of tokens that end a turn, whatever a file calls them: many files name only the token that ends a
/// document. The list is llama.cpp's.
const ENDS: [&str; 25] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// The characters that each of them begins with.
const FIRST: [char; 3] = ['<', '[', '_'];

impl Special {
    pub(super) fn read(
        header: &Header<'_>,
        model: &str,
        pieces: &VocabularyPieces<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Self, KeyError> {
        let mut id = |name: &str, otherwise: Option<u32>| -> Result<Option<u32>, KeyError> {
            let key = format!("tokenizer.ggml.{name}_token_id");
            let inside = |id: &u32| (*id as usize) < pieces.len();
            match header.find::<i64>(&key)? {
                // Some writers express "none" by a negative number or by the largest one.
                Some(given) => {
                    let id = u32::try_from(given).ok().filter(inside);
                    if id.is_none() && given >= 0 && given != i64::from(u32::MAX) {
                        warnings
                            .push(format!("`{key}` is {given}, but there are {} tokens; it is ignored", pieces.len()));
                    }
                    Ok(id)
                }
                None => Ok(otherwise.filter(inside)),
            }
        };
        let (llama, bert) = (matches!(model, "llama" | "plamo2"), model == "bert");
        let t5 = model == "t5";
        let default = |id, when: bool| when.then_some(id);
        let mut special = Self {
            bos: id("bos", default(1, llama))?,
            eos: id("eos", default(2, llama).or(default(1, t5)))?,
            unknown: id("unknown", default(0, llama).or(default(100, bert)).or(default(2, t5)))?,
            // Misspelled in the format itself.
            separator: id("seperator", default(102, bert))?,
            padding: id("padding", default(0, bert || t5).or(default(3, model == "plamo2")))?,
            mask: id("mask", default(103, bert))?,
            ..Self::default()
        };
        if bert && special.bos.is_none() {
            special.bos = id("cls", Some(101))?;
        }
        special.end = [special.eos, id("eot", None)?, id("eom", None)?].into_iter().flatten().collect();
        special.add_bos_given = header.find("tokenizer.ggml.add_bos_token")?;
        special.add_bos = special.add_bos_given.unwrap_or(model == "llama" || bert);
        special.add_eos = header.find("tokenizer.ggml.add_eos_token")?.unwrap_or(t5) && special.eos.is_some();
        special.add_separator =
            header.find("tokenizer.ggml.add_sep_token")?.unwrap_or(bert) && special.separator.is_some();
        special.sort_by_kind(pieces);
        special.find_ends(pieces);
        special.strips_right = strips_right(header, pieces, &special)?;
        special.strips_left = strips_left(header, pieces, &special)?;
        Ok(special)
    }

    fn sort_by_kind(&mut self, pieces: &VocabularyPieces<'_>) {
        for (id, _, kind) in pieces.iter() {
            match kind {
                TokenKind::Control | TokenKind::Unknown => self.control.insert(id),
                TokenKind::UserDefined => self.user_defined.insert(id),
                TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => false,
            };
        }
    }

    fn find_ends(&mut self, pieces: &VocabularyPieces<'_>) {
        let found: Vec<(&str, u32)> = pieces
            .iter()
            // A look at the first byte spares nearly all tokens the rest.
            .filter(|(_, spelling, _)| spelling.starts_with(FIRST))
            .filter_map(|(id, spelling, _)| ENDS.iter().find(|end| **end == spelling).map(|end| (*end, id)))
            .collect();
        let has = |spelling: &str| found.iter().any(|(end, _)| *end == spelling);
        // In the harmony and solar formats `<|end|>` ends a message, not the turn.
        let message_end = has("<|call|>") && has("<|return|>") || has("<|calls|>") && has("<|flush|>");
        // If another token is the end, `</s>` is struck-out text in HTML.
        let plamo = self.eos.and_then(|eos| pieces.spelling(eos)) == Some("<|plamo:eos|>");
        let ordinary_s = has("<eos>") || plamo;
        for (spelling, id) in found {
            if message_end && spelling == "<|end|>" || ordinary_s && spelling == "</s>" {
                continue;
            }
            self.end.insert(id);
            // A file that calls it something else is wrong; shown it must not be.
            self.user_defined.remove(&id);
            self.control.insert(id);
        }
    }
}

/// Phi-3 was trained with control tokens that swallow the white space behind them. GGUF has no key for it; like
/// llama.cpp we know it by the model's name.
fn strips_right(
    header: &Header<'_>,
    pieces: &VocabularyPieces<'_>,
    special: &Special,
) -> Result<BTreeSet<u32>, KeyError> {
    let name = header.find::<&str>("general.name")?.unwrap_or_default().to_lowercase();
    if !(name.contains("phi-3") || name.contains("phi3")) {
        return Ok(BTreeSet::new());
    }
    let keeps = |id: &u32| matches!(pieces.spelling(*id), Some("<unk>" | "<s>" | "<|endoftext|>"));
    Ok(special.control.iter().chain(&special.user_defined).copied().filter(|id| !keeps(id)).collect())
}

/// Masks of some models were trained to swallow the white space in front of them. GGUF has no key for it; like
/// llama.cpp we know those models by their names.
fn strips_left(
    header: &Header<'_>,
    pieces: &VocabularyPieces<'_>,
    special: &Special,
) -> Result<BTreeSet<u32>, KeyError> {
    let pre = header.find::<&str>("tokenizer.ggml.pre")?.unwrap_or_default();
    let architecture = header.find::<&str>("general.architecture")?.unwrap_or_default();
    let name = header.find::<&str>("general.name")?.unwrap_or_default().to_lowercase();
    let contains = |text: &str, names: &[&str]| names.iter().any(|name| text.contains(name));
    let mask = if contains(pre, &["jina-v2-de", "jina-v2-es", "jina-v2-code"])
        || contains(architecture, &["nomic-bert-moe", "jina-bert-v3"])
    {
        "<mask>"
    } else if name.contains("modern-bert") {
        "[MASK]"
    } else {
        return Ok(BTreeSet::new());
    };
    let cut = special.control.iter().chain(&special.user_defined);
    Ok(cut.copied().filter(|id| pieces.spelling(*id) == Some(mask)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_passes_the_look_at_its_first_byte() {
        assert!(ENDS.iter().all(|end| end.starts_with(FIRST)));
    }
}
