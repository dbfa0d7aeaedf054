//! `POST /v1/audio/transcriptions` and `/v1/audio/translations`: the text of sound, in each form that OpenAI's API has.

mod answer;
mod fields;
mod request;
mod routes;
mod stream;
mod subtitles;
mod task;

pub(super) use routes::{transcribe, translate};
