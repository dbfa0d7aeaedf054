//! The wish of a request: its file, the form of the answer, and how the sound is heard.

use axum::body::Bytes;
use axum::http::HeaderMap;
use model_boss_engine::speech::{SpeechInfo, TranscriptWish};
use model_boss_protocol::ApiError;
use serde::Deserialize;

use super::fields::SpeechFields;
use super::task::{SpeechTask, TranscriptFormat};
use crate::http::error::text_error;
use crate::state::{Serving, WorkerState};
use crate::text::{AddSpecials, EncodeQuestion};

/// How a long recording is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunking {
    /// At its quiet places; the chunks are heard together.
    Quiet,
    /// Not at all: each window begins where the text of the one before ends.
    Whole,
}

/// A request, checked.
pub(super) struct TranscriptRequest {
    file: std::ops::Range<usize>,
    pub(super) task: SpeechTask,
    pub(super) format: TranscriptFormat,
    pub(super) stream: bool,
    pub(super) chunking: Chunking,
    pub(super) words: bool,
    pub(super) segments: bool,
    pub(super) logprobs: bool,
    language: Option<u32>,
    times: bool,
    temperature: f32,
    prompt: Option<String>,
    keeps_context: bool,
}

/// OpenAI's object in `chunking_strategy`. Its numbers are for a detector of voices. Quiet places are found without
/// one, so the numbers are checked and change nothing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChunkingObject {
    #[serde(rename = "type")]
    kind: String,
    threshold: Option<f64>,
    prefix_padding_ms: Option<u64>,
    silence_duration_ms: Option<u64>,
}

impl ChunkingObject {
    fn check(&self) -> Result<(), String> {
        if self.threshold.is_some_and(|threshold| !(0.0..=1.0).contains(&threshold)) {
            return Err("threshold is from 0 to 1".to_owned());
        }
        let longest = 60_000;
        let both = [("prefix_padding_ms", self.prefix_padding_ms), ("silence_duration_ms", self.silence_duration_ms)];
        match both.into_iter().find(|(_, time)| time.is_some_and(|time| time > longest)) {
            Some((name, _)) => Err(format!("{name} is at most {longest}")),
            None => Ok(()),
        }
    }
}

impl TranscriptRequest {
    pub(super) fn read(
        worker: &WorkerState,
        info: &SpeechInfo,
        headers: &HeaderMap,
        body: &Bytes,
        task: SpeechTask,
    ) -> Result<Self, ApiError> {
        let fields = SpeechFields::read(headers, body, &worker.defaults)?;
        let file = fields.file()?.content.clone();
        let format =
            fields.value("response_format", "json, text, srt, verbose_json or vtt")?.unwrap_or(TranscriptFormat::Json);
        let stream = fields.flag("stream")?.unwrap_or(false);
        if stream && !matches!(format, TranscriptFormat::Json | TranscriptFormat::Text) {
            let message =
                format!("a stream has no form {}; leave 'response_format' out or set it to json", format.name());
            return Err(ApiError::invalid("response_format", message));
        }
        let (mut words, mut segments) = (false, false);
        for granularity in fields.list("timestamp_granularities") {
            match granularity.trim() {
                "word" => words = true,
                "segment" => segments = true,
                other => {
                    let other: String = other.escape_debug().take(60).collect();
                    let message = format!("'timestamp_granularities' has '{other}'; it may have word and segment");
                    return Err(ApiError::invalid("timestamp_granularities", message));
                }
            }
        }
        if words && format != TranscriptFormat::VerboseJson {
            let message = "times of words are told in the form verbose_json only: set 'response_format' to it";
            return Err(ApiError::invalid("timestamp_granularities", message));
        }
        let mut logprobs = false;
        for included in fields.list("include") {
            match included.trim() {
                "logprobs" => logprobs = true,
                other => {
                    let other: String = other.escape_debug().take(60).collect();
                    return Err(ApiError::invalid("include", format!("'include' has '{other}'; it may have logprobs")));
                }
            }
        }
        let chunking = chunking(fields.text("chunking_strategy"))?;
        let temperature: f32 = fields.value("temperature", "a number from 0 to 1")?.unwrap_or(0.0);
        if !(0.0..=1.0).contains(&temperature) {
            return Err(ApiError::invalid(
                "temperature",
                format!("'temperature' is {temperature}; it must be from 0 to 1"),
            ));
        }
        let times = !fields.flag("without_timestamps")?.unwrap_or(false);
        if !times && !matches!(format, TranscriptFormat::Json | TranscriptFormat::Text) {
            let message = format!("the form {} needs times, and 'without_timestamps' is true", format.name());
            return Err(ApiError::invalid("without_timestamps", message));
        }
        let keeps_context = fields.flag("condition_on_previous_text")?.unwrap_or(chunking == Chunking::Whole);
        Ok(Self {
            file,
            task,
            format,
            stream,
            chunking,
            words,
            segments: segments || !words,
            logprobs,
            language: language(info, fields.text("language"))?,
            times,
            temperature,
            prompt: fields.text("prompt"),
            keeps_context,
        })
    }

    /// The file in the request's body.
    pub(super) fn file(&self, body: Bytes) -> Bytes {
        body.slice(self.file.clone())
    }

    /// The wish, with the prompt's tokens.
    pub(super) async fn wish(&self, serving: &Serving, info: &SpeechInfo) -> Result<TranscriptWish, ApiError> {
        let usual = TranscriptWish::default();
        let prompt = match &self.prompt {
            None => Vec::new(),
            Some(prompt) => {
                let failed = |error| text_error(error, "prompt", info.most_tokens);
                let question = EncodeQuestion::new(vec![format!(" {}", prompt.trim())], AddSpecials::No, None);
                serving.text.encode(question.map_err(failed)?).await.map_err(failed)?.pop().unwrap_or_default()
            }
        };
        // A word of the prompt that would be an order to the model is left out.
        let prompt = prompt.into_iter().filter(|token| *token < info.tokens.end).collect();
        let temperatures = if self.temperature > 0.0 { vec![self.temperature] } else { usual.temperatures.clone() };
        Ok(TranscriptWish {
            language: self.language,
            translate: self.task == SpeechTask::Translate,
            times: self.times,
            words: self.words,
            temperatures,
            prompt,
            keeps_context: self.keeps_context,
            ..usual
        })
    }
}

fn chunking(told: Option<String>) -> Result<Chunking, ApiError> {
    let Some(told) = told else { return Ok(Chunking::Quiet) };
    let is_object = told.trim_start().starts_with('{');
    let kind = if is_object {
        let object = serde_json::from_str::<ChunkingObject>(&told).map_err(|error| error.to_string());
        let checked = object.and_then(|object| object.check().map(|()| object.kind));
        checked.map_err(|why| ApiError::invalid("chunking_strategy", format!("'chunking_strategy': {why}")))?
    } else {
        told.trim().trim_matches('"').to_owned()
    };
    match kind.as_str() {
        "auto" | "server_vad" => Ok(Chunking::Quiet),
        "none" => Ok(Chunking::Whole),
        other => {
            let other: String = other.escape_debug().take(60).collect();
            let message = format!(
                "'chunking_strategy' is '{other}'; it may be auto (cut at quiet places), an object of type server_vad \
                 (the same), or none (one window after the other)"
            );
            Err(ApiError::invalid("chunking_strategy", message))
        }
    }
}

/// The token of a language that is named by its code.
fn language(info: &SpeechInfo, told: Option<String>) -> Result<Option<u32>, ApiError> {
    let Some(told) = told else { return Ok(None) };
    // A region does not matter here: en-US.
    let code = told.trim().split(['-', '_']).next().unwrap_or_default().to_ascii_lowercase();
    if info.languages.is_empty() {
        if code == "en" {
            return Ok(None);
        }
        let code: String = code.escape_debug().take(20).collect();
        return Err(ApiError::invalid(
            "language",
            format!("'language' is '{code}', and this model knows English only"),
        ));
    }
    let found = info.languages.iter().find(|(known, _)| *known == code);
    found.map(|(_, token)| Some(*token)).ok_or_else(|| {
        let known: Vec<&str> = info.languages.iter().map(|(code, _)| code.as_str()).collect();
        let told: String = told.escape_debug().take(20).collect();
        let message = format!("'language' is '{told}'; it must be a code that the model knows: {}", known.join(", "));
        ApiError::invalid("language", message)
    })
}
