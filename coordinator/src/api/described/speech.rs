//! Speech, and the voices of models that speak.

use model_boss_openapi::shapes::{SoundBytes, SpeechEventBody, SpeechRequest};
use model_boss_openapi::{Operation, Tag};
use model_boss_protocol::ErrorCode;

use super::errors::OF_INFERENCE;
use super::models::EVENTS;
use super::parameters::{OF_AN_ANSWER, by_a_client, with_own_headers};
use crate::api::inference::speech::VoiceList;

/// `POST /v1/audio/speech`.
pub(crate) fn speech() -> Operation {
    let text = "OpenAI's speech, by models of the category `tts`: sound while it is made, or events with pieces of it";
    let operation = Operation::new(Tag::Models, "create_speech", text)
        .see(&["speech.md"])
        .body::<SpeechRequest>()
        .answers_as::<SoundBytes>(200, "the sound", "audio/wav")
        .answers_as::<SoundBytes>(200, "the sound", "audio/flac")
        .answers_as::<SoundBytes>(200, "the sound", "audio/ogg")
        .answers_as::<SoundBytes>(200, "the sound", "audio/pcm")
        .passes_stream::<SpeechEventBody>(EVENTS)
        .with_headers(OF_AN_ANSWER);
    with_own_headers(operation).errors(OF_INFERENCE).status_of_engines()
}

/// `GET /v1/audio/voices`.
pub(crate) fn voices() -> Operation {
    let text = "the voices of the models that speak, with `model` those of one";
    by_a_client(Operation::new(Tag::Models, "list_voices", text))
        .see(&["speech.md"])
        .query::<String>("model", "The model whose voices are listed.")
        .answers::<VoiceList>(200, "the voices")
        .errors(&[ErrorCode::ModelNotFound])
}
