//! The two routes: from a form to its answer.

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use model_boss_audio::decode::{AudioError, AudioLimits, decode};
use model_boss_audio::{ChunkPlan, SoundRecording, cuts};
use model_boss_engine::speech::SpeechInfo;
use model_boss_protocol::{ApiError, WorkUnit};
use tokio::sync::mpsc;

use super::answer::HeardAnswer;
use super::request::{Chunking, TranscriptRequest};
use super::stream::TranscriptStream;
use super::task::{SpeechTask, TranscriptFormat, failure};
use crate::encoding::asked_priority;
use crate::hearing::{HearEvent, HearJob};
use crate::http::error::ErrorAnswer;
use crate::meter::WorkMeter;
use crate::state::{Serving, WorkerState};

/// Answers with the words that are spoken.
pub(in crate::http) async fn transcribe(
    state: State<Arc<WorkerState>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ErrorAnswer> {
    answer(state, headers, body?, SpeechTask::Transcribe).await
}

/// Answers with what is said, in English.
pub(in crate::http) async fn translate(
    state: State<Arc<WorkerState>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ErrorAnswer> {
    answer(state, headers, body?, SpeechTask::Translate).await
}

async fn answer(
    State(worker): State<Arc<WorkerState>>,
    headers: HeaderMap,
    body: Bytes,
    task: SpeechTask,
) -> Result<Response, ErrorAnswer> {
    let serving = worker.serving()?;
    let info = serving.hearing()?;
    let request = TranscriptRequest::read(&worker, info, &headers, &body, task)?;
    let wish = Arc::new(request.wish(serving, info).await?);
    let began = Instant::now();
    let (recording, chunks) = heard(serving, info, request.file(body), request.chunking).await?;
    let finds_language = wish.language.is_none() && !info.languages.is_empty();
    let mut told = HeardAnswer::new(&request, info, wish.language, recording.duration());
    told.decoded(began.elapsed());
    let (events, mut inbox) = mpsc::unbounded_channel();
    let priority = asked_priority();
    serving.hear(HearJob { recording, chunks, wish, finds_language, priority, events }).await?;
    let vocabulary = Arc::clone(&serving.text.vocabulary);
    if request.stream {
        // A failure before the first words keeps its status.
        let first = next(&mut inbox).await?;
        let stream = TranscriptStream::new(told, vocabulary, first, inbox);
        let mut response = Response::new(Body::new(stream));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        return Ok(response);
    }
    let meter = WorkMeter::current();
    loop {
        match next(&mut inbox).await? {
            HearEvent::Failed(error) => return Err(failure(&error).into()),
            HearEvent::Language(token) => told.is_in(token),
            HearEvent::Segments(segments) => {
                if let (Some(meter), Some(last)) = (&meter, segments.last()) {
                    let total = told.usage().seconds();
                    meter.counted(WorkUnit::Seconds, (last.end as u64).min(total), Some(total));
                    segments.iter().for_each(|segment| meter.wrote(&segment.text));
                }
                told.heard(segments);
            }
            HearEvent::Done(totals) => {
                told.done(totals);
                break;
            }
        }
    }
    let kind = match told.format() {
        TranscriptFormat::Json | TranscriptFormat::VerboseJson => "application/json",
        TranscriptFormat::Text | TranscriptFormat::Srt | TranscriptFormat::Vtt => "text/plain; charset=utf-8",
    };
    Ok(([(CONTENT_TYPE, kind)], told.body(&vocabulary)).into_response())
}

async fn next(inbox: &mut mpsc::UnboundedReceiver<HearEvent>) -> Result<HearEvent, ErrorAnswer> {
    match inbox.recv().await {
        Some(HearEvent::Failed(error)) => Err(failure(&error).into()),
        Some(event) => Ok(event),
        None => Err(crate::gone::engine_gone().await.into()),
    }
}

/// A file's sound and its chunks, decoded away from the threads that serve sockets.
async fn heard(
    serving: &Serving,
    info: &SpeechInfo,
    file: Bytes,
    chunking: Chunking,
) -> Result<(Arc<SoundRecording>, Vec<std::ops::Range<usize>>), ApiError> {
    // The semaphore is never closed.
    let _place = serving.listening.acquire().await;
    let longest = info.frames * info.mel.hop;
    let work = move || {
        let recording = decode(file.into(), &AudioLimits::default())?;
        let count = recording.samples.len();
        let chunks = match chunking {
            Chunking::Whole => std::iter::once(0..count).collect(),
            Chunking::Quiet => cuts(&recording, ChunkPlan { longest }),
        };
        Ok((Arc::new(recording), chunks))
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(heard) => heard.map_err(|error: AudioError| audio_error(&error)),
        // A panic has been reported on stderr: a decoder's fault about this file.
        Err(_) => Err(audio_error(&AudioError::Damaged("its decoder failed".to_owned()))),
    }
}

fn audio_error(error: &AudioError) -> ApiError {
    ApiError::invalid("file", format!("'file': {error}"))
}
