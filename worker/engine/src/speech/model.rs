//! The contract between the worker's shell and a model that turns sound into text. It fits on one page: all operations
//! of such a model are here.

use std::any::Any;
use std::sync::Arc;

use model_boss_audio::MelShape;

use crate::decoder::DecoderError;
use crate::places::PlaceUse;

/// Facts about a model that hears.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeechInfo {
    /// Length of a row of logits.
    pub vocab_size: usize,
    /// The spectrogram that the model reads.
    pub mel: MelShape,
    /// Frames of a window.
    pub frames: usize,
    /// Tokens of the longest text, those in front of it included.
    pub most_tokens: usize,
    /// Tokens with a meaning of their own.
    pub tokens: SpeechTokens,
    /// The codes of languages and their tokens, in the order of the tokens; empty for a model of English alone.
    pub languages: Vec<(String, u32)>,
    /// Whether the model knows how words and sound correspond, which times of words need.
    pub knows_words: bool,
    /// Frames over which attention is smoothed before words are aligned.
    pub smoothed: usize,
    /// Windows that there is memory for at the same time.
    pub most_windows: usize,
    /// Bytes of weights held.
    pub weight_bytes: u64,
    /// Bytes that keys and values of all windows and texts take, at most.
    pub kv_bytes: u64,
    /// Bytes that a step takes beside them.
    pub workspace_bytes: u64,
}

/// Tokens with a meaning of their own, and tokens that never come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpeechTokens {
    /// Begins the text of a window.
    pub start: u32,
    /// Ends a text. Smaller numbers are text.
    pub end: u32,
    /// Asks for the words that are spoken; none in a model of English alone.
    pub transcribe: Option<u32>,
    /// Asks for English.
    pub translate: Option<u32>,
    /// Comes before text that was heard earlier.
    pub previous: Option<u32>,
    /// Means that there is no speech.
    pub no_speech: Option<u32>,
    /// Asks for text without times. The token behind it is the first time, 0.
    pub no_timestamps: u32,
    /// Tokens that never come.
    pub suppressed: Vec<u32>,
    /// Tokens that are never the first.
    pub suppressed_first: Vec<u32>,
    /// The latest first time, counted in times; any without.
    pub latest_first: Option<u32>,
}

impl SpeechTokens {
    /// The token of the time 0.
    pub fn first_time(&self) -> u32 {
        self.no_timestamps + 1
    }
}

/// A window that a model has heard: keys and values of its sound. Its memory is given back when it is dropped.
#[derive(Clone)]
pub struct HeardWindow(pub Arc<dyn Any + Send + Sync>);

/// A text over a window, as far as the model has read it: keys and values of its tokens.
pub struct SpeechText(pub Box<dyn Any + Send>);

/// New tokens of one text.
pub struct SpeechStep<'a> {
    /// The text.
    pub text: &'a mut SpeechText,
    /// Its next tokens; never empty.
    pub tokens: &'a [u32],
    /// The tokens behind which logits are wanted, counted in `tokens`.
    pub wanted: &'a [usize],
}

/// Called between the parts of layers, where more important work may be done by the same model.
pub type AtSpeechPause<'a> = &'a (dyn Fn() + Sync);

/// A model that turns sound into text. What it computes for one window or text depends on no other.
pub trait SpeechModel: Send + Sync {
    /// The facts.
    fn info(&self) -> &SpeechInfo;

    /// The use of the model's device.
    fn places(&self) -> Arc<[PlaceUse]>;

    /// Hears the spectrogram of a window, `[bins, frames]`.
    fn hear(&self, mel: &[f32], pause: AtSpeechPause<'_>) -> Result<HeardWindow, DecoderError>;

    /// Begins a text over a window.
    fn begin(&self, window: &HeardWindow) -> Result<SpeechText, DecoderError>;

    /// Reads the next tokens of several texts: for each the logits that are wanted, one row behind the other. On an
    /// error the texts are of no more use.
    fn step(&self, steps: &mut [SpeechStep<'_>], pause: AtSpeechPause<'_>) -> Result<Vec<Vec<f32>>, DecoderError>;

    /// The attention of these tokens to the sound, by each head that aligns words: `[heads, tokens, frames / 2]`, with
    /// the logits behind each token, `[tokens, vocab_size]`.
    fn attended(
        &self,
        window: &HeardWindow,
        tokens: &[u32],
        pause: AtSpeechPause<'_>,
    ) -> Result<(Vec<f32>, Vec<f32>), DecoderError>;
}
