//! Pictures.

use model_boss_openapi::shapes::{EditRequest, PictureEventBody, PictureRequestBody, PicturesBody};
use model_boss_openapi::{Operation, Tag};
use model_boss_protocol::ErrorCode;

use super::errors::OF_INFERENCE;
use super::models::EVENTS;
use super::parameters::{OF_AN_ANSWER, by_a_client, with_own_headers};

/// `POST /v1/images/generations`.
pub(crate) fn generations() -> Operation {
    let text = "OpenAI's pictures of a text, by models of the category `diffusion`, with the fields of `diffusers`";
    answered(Operation::new(Tag::Models, "create_image", text).body::<PictureRequestBody>())
}

/// `POST /v1/images/edits`.
pub(crate) fn edits() -> Operation {
    let text = "the same beginning with a picture, as a whole or where a mask shows; also as JSON with `data:` URLs";
    answered(Operation::new(Tag::Models, "edit_image", text).form::<EditRequest>())
}

/// `POST /v1/images/variations`.
pub(crate) fn variations() -> Operation {
    let text = "refused by name: no model here makes variations without a prompt";
    by_a_client(Operation::new(Tag::Models, "vary_image", text))
        .see(&["pictures.md"])
        .form::<EditRequest>()
        .errors(&[ErrorCode::UnsupportedByModel])
}

fn answered(operation: Operation) -> Operation {
    let operation = operation.passes::<PicturesBody>("the pictures").with_headers(OF_AN_ANSWER);
    let operation = with_own_headers(operation).errors(OF_INFERENCE).status_of_engines();
    operation.passes_stream::<PictureEventBody>(EVENTS).see(&["pictures.md"])
}
