//! Speech, as OpenAI's API has it.

use schemars::JsonSchema;

use super::common::RequestOwnFields;

/// A request for speech.
#[derive(Debug, JsonSchema)]
pub struct SpeechRequest {
    /// A model of the category `tts`, or an alias of one.
    pub model: Option<String>,
    /// The text, of at most 4096 characters.
    #[schemars(length(min = 1, max = 4096))]
    pub input: String,
    /// A voice of the model; its usual one when absent.
    pub voice: Option<VoiceChoice>,
    /// The format of the sound; `wav` when absent.
    pub response_format: Option<SpeechFormat>,
    /// The speed; 1 is the voice's own.
    #[schemars(range(min = 0.25, max = 4.0))]
    pub speed: Option<f64>,
    /// How the text is spoken, in words, for models that read it.
    pub instructions: Option<String>,
    /// Whether the answer is sound, or events with pieces of it.
    pub stream_format: Option<SpeechStreamFormat>,
    /// The seed of the noise that models draw; a new one each time when absent.
    pub seed: Option<u64>,
    /// Whether `input` is written in phonemes, for models that read these.
    pub phonemes: Option<bool>,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// A voice by its name.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum VoiceChoice {
    /// The name.
    Name(String),
    /// An object with the name.
    Object {
        /// The name.
        id: String,
    },
}

/// A format of sound.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub enum SpeechFormat {
    /// WAV, of 16 bits.
    Wav,
    /// FLAC, of 16 bits.
    Flac,
    /// Opus in Ogg.
    Opus,
    /// Samples of 16 bits, 24,000 in a second, without a head.
    Pcm,
}

/// The form of an answer.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub enum SpeechStreamFormat {
    /// The bytes of the sound, as they are made.
    Audio,
    /// Server-sent events with pieces of the sound in base64.
    Sse,
}

/// The bytes of a sound.
#[derive(Debug, JsonSchema)]
#[schemars(transparent)]
pub struct SoundBytes(#[schemars(extend("format" = "binary"))] pub String);

/// An event with a piece of a sound, or the last one.
#[derive(Debug, JsonSchema)]
pub struct SpeechEventBody {
    /// `speech.audio.delta` or `speech.audio.done`.
    #[schemars(rename = "type")]
    pub kind: String,
    /// A piece of the sound in base64, of a delta.
    pub audio: Option<String>,
    /// The tokens of the request, of the last event.
    pub usage: Option<SpeechUsageBody>,
}

/// Tokens of a request for speech.
#[derive(Debug, JsonSchema)]
pub struct SpeechUsageBody {
    /// Symbols of the text.
    pub input_tokens: u64,
    /// Frames of the sound.
    pub output_tokens: u64,
    /// Both.
    pub total_tokens: u64,
}
