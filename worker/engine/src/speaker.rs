//! The contract of models that speak: a part of a text in, samples out as they are computed.

use std::any::Any;
use std::sync::Arc;

use model_boss_protocol::SpeechVoice;

use crate::decoder::DecoderError;
use crate::places::PlaceUse;
use crate::torch_generator::TorchGenerator;

/// The facts about a model that speaks.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeakerInfo {
    /// Samples per second.
    pub rate: u32,
    /// The voices; the first one is the usual one.
    pub voices: Vec<SpeechVoice>,
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// Bytes beside them while a part is computed, at the most.
    pub workspace_bytes: u64,
    /// The most characters of a part.
    pub longest_part: usize,
    /// Whether it speaks at any speed, and not at its own only.
    pub has_speeds: bool,
}

/// The state that a model keeps from one part of a text to the next, such as its voice. None before the first.
pub type SpeakerMemory = Option<Box<dyn Any + Send + Sync>>;

/// A part of a text, such as a sentence, and how it is spoken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpokenPart<'a> {
    /// The text's symbols, as [`Speaker::symbols`] gives them.
    pub symbols: &'a [u32],
    /// The place of the voice among those of the model.
    pub voice: usize,
    /// The speed: 1 is the model's own.
    pub speed: f32,
    /// How it shall sound, as [`Speaker::instructions`] gives it; empty without a wish. All parts of a text have the
    /// same.
    pub instructions: &'a [u32],
}

/// How a part ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartEnd {
    /// It was spoken to its end, in so many steps of the model.
    Spoken {
        /// Frames of sound, which count as tokens of an answer.
        frames: usize,
    },
    /// The listener has gone.
    Stopped,
}

/// The listener of a part.
pub trait SpeechListener: Send {
    /// Hears the next samples, between -1 and 1.
    fn hear(&mut self, samples: &[f32]);

    /// Called between the steps of a part, where others may be spoken by the same model. The answer is whether to go
    /// on.
    fn pause(&mut self, speaker: &dyn Speaker) -> bool;
}

/// A model that speaks. Its weights do not change, so that one part may be spoken in the pauses of another.
pub trait Speaker: Send + Sync {
    /// The facts.
    fn info(&self) -> &SpeakerInfo;

    /// The use of its devices.
    fn places(&self) -> Arc<[PlaceUse]>;

    /// The symbols of a text. `phonemes`: whether the text is written in the model's own symbols for sounds. The list
    /// is empty where the text has nothing that can be spoken.
    ///
    /// # Errors
    /// The reason why the text cannot be spoken, for the client.
    fn symbols(&self, text: &str, phonemes: bool) -> Result<Vec<u32>, String>;

    /// The symbols of a description of how a text shall sound.
    ///
    /// # Errors
    /// The reason why the model cannot read it, for the client.
    fn instructions(&self, text: &str) -> Result<Vec<u32>, String> {
        let _ = text;
        Err("this voice reads no instructions: leave 'instructions' out, or choose another voice".to_owned())
    }

    /// Speaks a part. The noise that the model draws is the generator's. The memory is that of the text's earlier
    /// parts.
    ///
    /// # Errors
    /// The device failed, or has too little memory.
    fn speak(
        &self,
        part: &SpokenPart<'_>,
        memory: &mut SpeakerMemory,
        random: &mut TorchGenerator,
        listener: &mut dyn SpeechListener,
    ) -> Result<PartEnd, DecoderError>;
}
