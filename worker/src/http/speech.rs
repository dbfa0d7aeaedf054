//! `POST /v1/audio/speech`: a text as sound, while it is made, as OpenAI's API has it. `GET /v1/audio/voices` lists the
//! voices.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body::Frame;
use model_boss_audio::encode::{EncodeSoundError, SoundEncoder, SoundFormat};
use model_boss_protocol::sse::event;
use model_boss_protocol::{ApiError, ErrorCode, ErrorSource, LONGEST_SPEECH, SPEECH_SPEEDS, SpeechVoice};
use serde::{Deserialize, Serialize};

use super::error::ErrorAnswer;
use super::fields::RequestFields;
use crate::encoding::asked_priority;
use crate::gone::ENGINE_GONE;
use crate::speaking::{PieceReader, Speaking, Speech, SpeechPiece, SpeechWish, SpokenUsage};
use crate::state::WorkerState;

/// The most voices that an error lists.
const LISTED: usize = 20;

/// Samples that are encoded at a time, so that other requests are served in between.
const AT_ONCE: usize = 8_192;

/// The format of requests that name none. OpenAI's own is MP3, which is not written here.
const USUAL_FORMAT: SoundFormat = SoundFormat::Wav;

/// Formats of OpenAI's API that are not written here.
const NOT_WRITTEN: [&str; 2] = ["mp3", "aac"];

/// A voice, by its name or as an object with it.
#[derive(Deserialize)]
#[serde(untagged, expecting = "the name of a voice, or an object with 'id'")]
enum VoiceField {
    Name(String),
    Object { id: String },
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpeechForm {
    Sound,
    Events,
}

/// The voices of the model.
#[derive(Serialize)]
pub(super) struct SpeechVoices {
    object: &'static str,
    voices: Vec<SpeechVoice>,
}

/// Lists the voices, with their other names behind them.
pub(super) async fn voices(State(worker): State<Arc<WorkerState>>) -> Result<Json<SpeechVoices>, ErrorAnswer> {
    let mut voices = worker.speaking()?.voices().to_vec();
    let other = |(other, id): (&String, &String)| {
        let of = voices.iter().find(|voice| voice.id == *id)?;
        Some(SpeechVoice { id: other.clone(), ..of.clone() })
    };
    let others: Vec<SpeechVoice> = worker.spec.voices.iter().filter_map(other).collect();
    voices.extend(others);
    Ok(Json(SpeechVoices { object: "list", voices }))
}

/// Speaks a text.
pub(super) async fn speak(
    State(worker): State<Arc<WorkerState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ErrorAnswer> {
    let body = body?;
    let fields = RequestFields::read(&body, Some(&worker.defaults))?;
    let speaking = worker.speaking()?;
    let (format, form) = (format_of(&fields)?, form_of(&fields)?);
    let wish = wish_of(&fields, speaking, &worker)?;
    let speech = speaking.speak(wish).await?;
    let rate = speech.rate;
    let stream = SpeechStream::new(speech, format, form).map_err(|error| encoding_error(&error))?;
    let mut response = Response::new(Body::new(stream));
    let kind = match (form, format) {
        (SpeechForm::Events, _) => HeaderValue::from_static("text/event-stream"),
        // Raw samples do not tell their rate.
        (SpeechForm::Sound, SoundFormat::Pcm) => {
            let kind = format!("{};rate={}", format.content_type(), format.rate(rate));
            HeaderValue::try_from(kind).unwrap_or(HeaderValue::from_static("audio/pcm"))
        }
        (SpeechForm::Sound, format) => HeaderValue::from_static(format.content_type()),
    };
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

fn format_of(fields: &RequestFields<'_>) -> Result<SoundFormat, ApiError> {
    let Some(name) = fields.get::<String>("response_format")? else { return Ok(USUAL_FORMAT) };
    let known = || SoundFormat::ALL.map(SoundFormat::name).join(", ");
    SoundFormat::named(&name).ok_or_else(|| {
        if NOT_WRITTEN.contains(&name.as_str()) {
            let message = format!("'response_format' {name} is not written here; send one of {}", known());
            return ApiError::new(ErrorCode::UnsupportedByModel, message).with_param("response_format");
        }
        let message = format!("'response_format' is '{name}'; it may be one of {}", known());
        ApiError::invalid("response_format", message)
    })
}

fn form_of(fields: &RequestFields<'_>) -> Result<SpeechForm, ApiError> {
    match fields.get::<String>("stream_format")?.as_deref() {
        None | Some("audio") => Ok(SpeechForm::Sound),
        Some("sse") => Ok(SpeechForm::Events),
        Some(other) => {
            let message = format!("'stream_format' is '{other}'; it may be audio or sse");
            Err(ApiError::invalid("stream_format", message))
        }
    }
}

fn wish_of(fields: &RequestFields<'_>, speaking: &Speaking, worker: &WorkerState) -> Result<SpeechWish, ApiError> {
    let text: String = fields.require("input")?;
    // Programs and tokenizers may end a text there.
    if text.contains('\0') {
        return Err(ApiError::invalid(
            "input",
            "'input' has the character U+0000, which nothing can say: leave it out",
        ));
    }
    let length = text.chars().count();
    if length > LONGEST_SPEECH {
        let message = format!("'input' has {length} characters; it may have {LONGEST_SPEECH}: send the text in parts");
        return Err(ApiError::invalid("input", message));
    }
    if text.trim().is_empty() {
        return Err(ApiError::invalid("input", "'input' is empty"));
    }
    let instructions = fields.get::<String>("instructions")?.unwrap_or_default();
    let length = instructions.chars().count();
    if length > LONGEST_SPEECH {
        let message = format!("'instructions' have {length} characters; they may have {LONGEST_SPEECH}");
        return Err(ApiError::invalid("instructions", message));
    }
    let voice = match fields.get::<VoiceField>("voice")? {
        Some(VoiceField::Name(name) | VoiceField::Object { id: name }) => voice_of(&name, speaking, worker)?,
        None => 0,
    };
    let (slowest, fastest) = SPEECH_SPEEDS;
    let speed = fields.number(&["speed"], f64::from(slowest)..=f64::from(fastest))?.unwrap_or(1.0);
    if speed != 1.0 && !speaking.has_speeds() {
        let message = "this voice speaks at its own speed only: leave 'speed' out, or choose another voice";
        return Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param("speed"));
    }
    let seed = match fields.get::<u64>("seed")? {
        Some(seed) => seed,
        None => rand_seed(),
    };
    let phonemes = fields.get("phonemes")?.unwrap_or(false);
    Ok(SpeechWish { text, voice, speed, seed, phonemes, instructions, priority: asked_priority() })
}

/// A seed that differs each time.
fn rand_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

/// The place of a voice among those of the model.
fn voice_of(name: &str, speaking: &Speaking, worker: &WorkerState) -> Result<usize, ApiError> {
    let place = |id: &str| speaking.voices().iter().position(|voice| voice.id == id);
    let found = place(name).or_else(|| place(worker.spec.voices.get(name)?));
    found.ok_or_else(|| {
        let ids: Vec<&str> = speaking.voices().iter().map(|voice| voice.id.as_str()).collect();
        let others = worker.spec.voices.keys().map(String::as_str);
        let mut listed: Vec<&str> = ids.iter().copied().chain(others).collect();
        let more = listed.len().saturating_sub(LISTED);
        listed.truncate(LISTED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        ApiError::invalid("voice", format!("there is no voice '{name}'; this model has {}{more}", listed.join(", ")))
    })
}

fn encoding_error(error: &EncodeSoundError) -> ApiError {
    ApiError::new(ErrorCode::Internal, error.to_string())
}

/// The body of an answer: sound as it is made, or events with pieces of it. Dropped when the client disconnects, which
/// ends the work.
struct SpeechStream {
    form: SpeechForm,
    /// None at the end.
    encoder: Option<SoundEncoder>,
    /// Samples that were not encoded yet, and how many of them were.
    samples: (Vec<f32>, usize),
    rest: PieceReader,
    over: bool,
    /// Why it was cut, until that was said.
    failed: Option<SpeechCut>,
}

/// The sound cannot go on: its end is missing.
#[derive(Debug, thiserror::Error)]
#[error("the sound was cut: {0}")]
struct SpeechCut(ApiError);

/// Events of OpenAI's API.
#[derive(Serialize)]
#[serde(tag = "type")]
enum ToldSpeech {
    #[serde(rename = "speech.audio.delta")]
    Delta { audio: String },
    #[serde(rename = "speech.audio.done")]
    Done { usage: SpeechUsage },
}

#[derive(Serialize)]
struct SpeechUsage {
    input_tokens: usize,
    output_tokens: usize,
    total_tokens: usize,
}

impl From<SpokenUsage> for SpeechUsage {
    fn from(SpokenUsage { symbols, frames }: SpokenUsage) -> Self {
        Self { input_tokens: symbols, output_tokens: frames, total_tokens: symbols + frames }
    }
}

impl SpeechStream {
    fn new(speech: Speech, format: SoundFormat, form: SpeechForm) -> Result<Self, EncodeSoundError> {
        let encoder = SoundEncoder::new(format, speech.rate)?;
        Ok(Self {
            form,
            encoder: Some(encoder),
            samples: (speech.first, 0),
            rest: speech.rest,
            over: false,
            failed: None,
        })
    }

    /// Bytes of the file as they are sent; none where there are none.
    fn framed(&self, bytes: Vec<u8>) -> Option<Bytes> {
        match self.form {
            _ if bytes.is_empty() => None,
            SpeechForm::Sound => Some(bytes.into()),
            SpeechForm::Events => Some(told(&ToldSpeech::Delta { audio: STANDARD.encode(bytes) })),
        }
    }

    /// Encodes some of the samples that are there.
    fn encode(&mut self) -> Result<Option<Bytes>, ApiError> {
        let Some(encoder) = &mut self.encoder else { return Ok(None) };
        let (samples, done) = &mut self.samples;
        let end = samples.len().min(*done + AT_ONCE);
        let bytes = encoder.push(&samples[*done..end]).map_err(|error| encoding_error(&error))?;
        *done = end;
        Ok(self.framed(bytes))
    }

    /// The last bytes of the sound.
    fn finish(&mut self, usage: SpokenUsage) -> Result<Option<Bytes>, ApiError> {
        self.over = true;
        let bytes = match self.encoder.take() {
            Some(encoder) => encoder.finish().map_err(|error| encoding_error(&error))?,
            None => Vec::new(),
        };
        let last = self.framed(bytes);
        Ok(match self.form {
            SpeechForm::Sound => last,
            SpeechForm::Events => {
                let done = told(&ToldSpeech::Done { usage: usage.into() });
                Some([last.unwrap_or_default(), done].concat().into())
            }
        })
    }

    /// Ends a sound that cannot go on.
    /// Ends in the middle. Sound that was given has to leave before its connection closes, so the error is for the next
    /// time.
    fn cut(&mut self, cx: &Context<'_>, error: ApiError) -> Poll<Option<Result<Frame<Bytes>, SpeechCut>>> {
        tracing::warn!(code = error.code.as_str(), message = error.message, "speech ends in the middle");
        self.over = true;
        match self.form {
            SpeechForm::Sound => {
                self.failed = Some(SpeechCut(error));
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            SpeechForm::Events => {
                Poll::Ready(Some(Ok(Frame::data(event(error.body(ErrorSource::Worker).to_json()).into()))))
            }
        }
    }
}

fn told(told: &ToldSpeech) -> Bytes {
    // Serialising texts and numbers cannot fail.
    event(serde_json::to_string(told).unwrap_or_default()).into()
}

impl http_body::Body for SpeechStream {
    type Data = Bytes;
    type Error = SpeechCut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, SpeechCut>>> {
        let this = &mut *self;
        loop {
            if this.over {
                return Poll::Ready(this.failed.take().map(Err));
            }
            if this.samples.1 < this.samples.0.len() {
                match this.encode() {
                    Ok(None) => continue,
                    Ok(Some(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                    Err(error) => return this.cut(cx, error),
                }
            }
            let piece = match this.rest.poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(piece) => piece,
            };
            match piece {
                Some(SpeechPiece::Sound(samples)) => this.samples = (samples, 0),
                Some(SpeechPiece::Done(usage)) => match this.finish(usage) {
                    Ok(None) => return Poll::Ready(None),
                    Ok(Some(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                    Err(error) => return this.cut(cx, error),
                },
                Some(SpeechPiece::Failed(failure)) => return this.cut(cx, failure.into()),
                None => return this.cut(cx, ApiError::new(ErrorCode::Internal, ENGINE_GONE)),
            }
        }
    }
}
