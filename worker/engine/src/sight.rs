//! Facts about a model that turns texts and images into vectors of one kind.

use model_boss_images::{PixelPlanes, PixelSteps};

use crate::label_shares::LabelShares;

/// How a model reads images and texts, and how it compares them.
#[derive(Clone, Debug, PartialEq)]
pub struct SightInfo {
    /// The steps from an image to the model's numbers.
    pub pixels: PixelSteps,
    /// Pixels of the side of a patch.
    pub patch: usize,
    /// Rows in front of the patches.
    pub rows_before: usize,
    /// The comparison of an image's vector with a text's, both of length 1: their product times this, and this added.
    pub scale: f32,
    /// See `scale`.
    pub bias: f32,
    /// How the results for several texts become shares.
    pub shares: LabelShares,
    /// Rows of a text in the model at least: texts may be filled up to one length.
    pub text_rows: usize,
    /// How texts are changed before they become tokens.
    pub letters: TextLetters,
    /// The token that ends every text, where the tokenizer does not write it itself.
    pub end: Option<u32>,
}

/// How texts are changed before they become tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextLetters {
    /// Not at all.
    #[default]
    AsWritten,
    /// Small letters.
    Small,
    /// Small letters, no ASCII punctuation, and one space between words.
    Words,
}

impl SightInfo {
    /// Rows of an image in the model.
    pub fn rows(&self, image: &PixelPlanes) -> usize {
        self.rows_before + (image.height / self.patch) * (image.width / self.patch)
    }
}

impl TextLetters {
    /// The text that becomes tokens.
    pub fn of(self, text: &str) -> String {
        match self {
            Self::AsWritten => text.to_owned(),
            Self::Small => text.to_lowercase(),
            Self::Words => {
                let kept: String =
                    text.to_lowercase().chars().filter(|letter| !letter.is_ascii_punctuation()).collect();
                kept.split_whitespace().collect::<Vec<_>>().join(" ")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_3_texts_are_written_as_the_model_was_trained() {
        let text = " A Photo, of\n a \"Cat\"! ";
        assert_eq!(TextLetters::AsWritten.of(text), text);
        assert_eq!(TextLetters::Small.of(text), " a photo, of\n a \"cat\"! ");
        assert_eq!(TextLetters::Words.of(text), "a photo of a cat");
    }
}
