//! The text of a request's sound as an answer, in each form.

use std::time::Duration;

use model_boss_engine::speech::{SpeechInfo, SpeechSegment, SpokenWord};
use model_boss_engine::text::Vocabulary;
use serde::Serialize;

use super::request::TranscriptRequest;
use super::subtitles::{srt, vtt};
use super::task::{SpeechTask, TranscriptFormat};
use crate::hearing::HearTotals;

/// An answer as far as it is known.
pub(super) struct HeardAnswer {
    format: TranscriptFormat,
    task: SpeechTask,
    /// Whether words, segments and probabilities are told.
    words: bool,
    segments: bool,
    logprobs: bool,
    /// Codes and tokens of languages; empty for a model of English.
    languages: Vec<(String, u32)>,
    language: Option<u32>,
    /// Tokens from here on are no text.
    end: u32,
    duration: Duration,
    decoding: Duration,
    heard: Vec<SpeechSegment>,
    totals: HearTotals,
}

#[derive(Serialize)]
struct PlainAnswer {
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<HeardToken>>,
    usage: DurationUsage,
    timings: SpeechTimings,
}

#[derive(Serialize)]
struct VerboseAnswer<'a> {
    task: &'static str,
    language: &'a str,
    duration: f64,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    segments: Option<Vec<SegmentObject<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<Vec<WordObject<'a>>>,
    usage: DurationUsage,
    timings: SpeechTimings,
}

#[derive(Serialize)]
struct SegmentObject<'a> {
    id: usize,
    seek: usize,
    start: f64,
    end: f64,
    text: &'a str,
    tokens: &'a [u32],
    temperature: f64,
    avg_logprob: f64,
    compression_ratio: f64,
    no_speech_prob: f64,
}

#[derive(Serialize)]
struct WordObject<'a> {
    word: &'a str,
    start: f64,
    end: f64,
    probability: f64,
}

/// The probability of a token, as OpenAI's API tells it.
#[derive(Serialize)]
pub(super) struct HeardToken {
    token: String,
    bytes: Vec<u8>,
    logprob: f64,
}

/// Sound is counted by its length.
#[derive(Serialize)]
pub(super) struct DurationUsage {
    #[serde(rename = "type")]
    kind: &'static str,
    seconds: u64,
}

/// The cost of the answer: llama.cpp's names where it has them.
#[derive(Serialize)]
pub(super) struct SpeechTimings {
    /// Milliseconds of sound.
    audio_ms: f64,
    /// Milliseconds of decoding the file.
    decode_ms: f64,
    prompt_n: u64,
    /// Tokens, those of tries that were not good included.
    predicted_n: u64,
    /// Milliseconds from the first window on.
    predicted_ms: f64,
    /// The length of the sound by the time that it took.
    x_real_time: f64,
}

impl DurationUsage {
    /// The seconds, rounded up.
    pub(super) fn seconds(&self) -> u64 {
        self.seconds
    }
}

impl HeardAnswer {
    pub(super) fn new(
        request: &TranscriptRequest,
        info: &SpeechInfo,
        language: Option<u32>,
        duration: Duration,
    ) -> Self {
        Self {
            format: request.format,
            task: request.task,
            words: request.words,
            segments: request.segments,
            logprobs: request.logprobs,
            languages: info.languages.clone(),
            language,
            end: info.tokens.end,
            duration,
            decoding: Duration::ZERO,
            heard: Vec::new(),
            totals: HearTotals::default(),
        }
    }

    pub(super) fn format(&self) -> TranscriptFormat {
        self.format
    }

    /// The file took so long to decode.
    pub(super) fn decoded(&mut self, took: Duration) {
        self.decoding = took;
    }

    pub(super) fn is_in(&mut self, language: u32) {
        self.language = Some(language);
    }

    pub(super) fn heard(&mut self, segments: Vec<SpeechSegment>) {
        self.heard.extend(segments);
    }

    pub(super) fn done(&mut self, totals: HearTotals) {
        self.totals = totals;
    }

    /// The whole text.
    pub(super) fn text(&self) -> String {
        let text: String = self.heard.iter().map(|segment| segment.text.as_str()).collect();
        text.trim().to_owned()
    }

    /// The code of the language.
    fn language(&self) -> &str {
        let found = self.languages.iter().find(|(_, token)| Some(*token) == self.language);
        // A recording without a sound has none; a model of English knows no other.
        found.map_or("en", |(code, _)| code)
    }

    pub(super) fn usage(&self) -> DurationUsage {
        DurationUsage { kind: "duration", seconds: self.duration.as_secs_f64().ceil() as u64 }
    }

    pub(super) fn timings(&self) -> SpeechTimings {
        let milliseconds = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let took = self.decoding.saturating_add(self.totals.took).as_secs_f64();
        SpeechTimings {
            audio_ms: milliseconds(self.duration),
            decode_ms: milliseconds(self.decoding),
            prompt_n: 0,
            predicted_n: self.totals.tokens as u64,
            predicted_ms: milliseconds(self.totals.took),
            x_real_time: (self.duration.as_secs_f64() / took.max(1e-9) * 100.0).round() / 100.0,
        }
    }

    /// The probabilities of some segments' tokens of text; none unless they were asked for.
    pub(super) fn logprobs(&self, segments: &[SpeechSegment], vocabulary: &Vocabulary) -> Option<Vec<HeardToken>> {
        self.logprobs.then(|| {
            let of_segment = |segment: &SpeechSegment| {
                let pairs = segment.tokens.clone().into_iter().zip(segment.logprobs.clone());
                pairs.filter(|(token, _)| *token < self.end).collect::<Vec<_>>()
            };
            let told = |(token, logprob): (u32, f32)| {
                let bytes = vocabulary.bytes(token);
                let token = String::from_utf8_lossy(bytes).into_owned();
                HeardToken { token, bytes: bytes.to_vec(), logprob: short(logprob) }
            };
            segments.iter().flat_map(of_segment).map(told).collect()
        })
    }

    /// All of the text's probabilities.
    pub(super) fn all_logprobs(&self, vocabulary: &Vocabulary) -> Option<Vec<HeardToken>> {
        self.logprobs(&self.heard, vocabulary)
    }

    /// The answer in its form.
    pub(super) fn body(&self, vocabulary: &Vocabulary) -> String {
        match self.format {
            TranscriptFormat::Text => self.text() + "\n",
            TranscriptFormat::Srt => srt(&self.heard),
            TranscriptFormat::Vtt => vtt(&self.heard),
            TranscriptFormat::Json => json(&PlainAnswer {
                text: self.text(),
                logprobs: self.all_logprobs(vocabulary),
                usage: self.usage(),
                timings: self.timings(),
            }),
            TranscriptFormat::VerboseJson => json(&VerboseAnswer {
                task: match self.task {
                    SpeechTask::Transcribe => "transcribe",
                    SpeechTask::Translate => "translate",
                },
                language: self.language(),
                duration: hundredths(self.duration.as_secs_f64()),
                text: self.text(),
                segments: self.segments.then(|| self.heard.iter().enumerate().map(segment_object).collect()),
                words: self
                    .words
                    .then(|| self.heard.iter().flat_map(|segment| &segment.words).map(word_object).collect()),
                usage: self.usage(),
                timings: self.timings(),
            }),
        }
    }
}

fn segment_object((id, segment): (usize, &SpeechSegment)) -> SegmentObject<'_> {
    SegmentObject {
        id,
        seek: segment.seek,
        start: hundredths(segment.start),
        end: hundredths(segment.end),
        text: &segment.text,
        tokens: &segment.tokens,
        temperature: short(segment.temperature),
        avg_logprob: short(segment.mean_logprob),
        compression_ratio: short(segment.compression_ratio),
        no_speech_prob: short(segment.no_speech),
    }
}

fn word_object(word: &SpokenWord) -> WordObject<'_> {
    WordObject {
        word: word.word.trim(),
        start: hundredths(word.start),
        end: hundredths(word.end),
        probability: short(word.probability),
    }
}

fn json(answer: &impl Serialize) -> String {
    // Objects of texts and finite numbers always serialise.
    serde_json::to_string(answer).unwrap_or_else(|_| "{}".to_owned())
}

fn hundredths(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

/// A number of 32 bits without the digits that 64 bits would add.
fn short(number: f32) -> f64 {
    (f64::from(number) * 1e6).round() / 1e6
}
