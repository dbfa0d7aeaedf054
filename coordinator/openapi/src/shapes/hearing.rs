//! The text of sound, as OpenAI has it. The parts of forms are described as fields.

use schemars::JsonSchema;

use super::common::RequestOwnFields;

/// A form with a file of sound.
#[derive(Debug, JsonSchema)]
pub struct TranscriptionRequest {
    /// The file: wav, flac, mp3, ogg, m4a or webm.
    pub file: String,
    /// A model of the category `transcription`, or an alias.
    pub model: Option<String>,
    /// The code of the language, such as `en`; found by the model otherwise.
    pub language: Option<String>,
    /// Text that could come before, whose spelling and style are kept.
    pub prompt: Option<String>,
    /// `json`, `text`, `srt`, `verbose_json` or `vtt`.
    pub response_format: Option<String>,
    /// From 0 to 1; at 0 an unsure text is tried again at higher ones.
    pub temperature: Option<f64>,
    /// `word`, `segment` or both, in the form `verbose_json`.
    #[schemars(rename = "timestamp_granularities[]")]
    pub timestamp_granularities: Option<Vec<String>>,
    /// `logprobs`.
    #[schemars(rename = "include[]")]
    pub include: Option<Vec<String>>,
    /// Whether the answer is streamed.
    pub stream: Option<bool>,
    /// `auto` cuts long sound at quiet places, `none` not at all.
    pub chunking_strategy: Option<String>,
    /// Whether the text is written without times.
    pub without_timestamps: Option<bool>,
    /// Whether each window reads the text of the one before.
    pub condition_on_previous_text: Option<bool>,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// The text of sound, in the form `json` or `verbose_json`.
#[derive(Debug, JsonSchema)]
pub struct Transcription {
    /// The text.
    pub text: String,
    /// `transcribe` or `translate`.
    pub task: Option<String>,
    /// The code of the language.
    pub language: Option<String>,
    /// Seconds of the sound.
    pub duration: Option<f64>,
    /// Pieces of the text with their times.
    pub segments: Option<Vec<TranscribedSegment>>,
    /// Words with their times.
    pub words: Option<Vec<TranscribedWord>>,
    /// The probabilities of the text's tokens.
    pub logprobs: Option<Vec<TranscribedToken>>,
    /// The length of the sound.
    pub usage: Option<TranscriptionUsage>,
    /// The cost of the answer.
    pub timings: Option<TranscriptionTimings>,
}

/// A piece of a transcript.
#[derive(Debug, JsonSchema)]
pub struct TranscribedSegment {
    /// Its number.
    pub id: u64,
    /// The frame that its window begins with, of 10 ms each.
    pub seek: u64,
    /// Its first second.
    pub start: f64,
    /// The second behind it.
    pub end: f64,
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u64>,
    /// The temperature that it was drawn at.
    pub temperature: f64,
    /// The mean logarithm of the probabilities of its window's tokens.
    pub avg_logprob: f64,
    /// The ratio of its window's text to its compressed form.
    pub compression_ratio: f64,
    /// The probability that its window has no speech.
    pub no_speech_prob: f64,
}

/// A word of a transcript.
#[derive(Debug, JsonSchema)]
pub struct TranscribedWord {
    /// The word.
    pub word: String,
    /// Its first second.
    pub start: f64,
    /// The second behind it.
    pub end: f64,
    /// The mean probability of its tokens.
    pub probability: Option<f64>,
}

/// A token of a transcript.
#[derive(Debug, JsonSchema)]
pub struct TranscribedToken {
    /// Its text.
    pub token: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The logarithm of its probability.
    pub logprob: f64,
}

/// The use of a transcript.
#[derive(Debug, JsonSchema)]
pub struct TranscriptionUsage {
    /// `duration`.
    #[schemars(rename = "type")]
    pub kind: String,
    /// Seconds of sound, rounded up.
    pub seconds: u64,
}

/// The times of a transcript.
#[derive(Debug, JsonSchema)]
pub struct TranscriptionTimings {
    /// Milliseconds of sound.
    pub audio_ms: f64,
    /// Milliseconds of decoding the file.
    pub decode_ms: f64,
    /// 0: sound has no tokens.
    pub prompt_n: u64,
    /// Tokens that were computed.
    pub predicted_n: u64,
    /// Milliseconds of computing.
    pub predicted_ms: f64,
    /// The length of the sound by the time that it took.
    pub x_real_time: f64,
}

/// An event of a streamed transcript.
#[derive(Debug, JsonSchema)]
pub struct TranscriptionEvent {
    /// `transcript.text.delta` or `transcript.text.done`.
    #[schemars(rename = "type")]
    pub kind: String,
    /// Further text.
    pub delta: Option<String>,
    /// All of the text, at the end.
    pub text: Option<String>,
    /// The probabilities of the tokens.
    pub logprobs: Option<Vec<TranscribedToken>>,
    /// The length of the sound, at the end.
    pub usage: Option<TranscriptionUsage>,
    /// The cost of the answer, at the end.
    pub timings: Option<TranscriptionTimings>,
}
