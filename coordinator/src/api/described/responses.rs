//! OpenAI's Responses.

use model_boss_openapi::shapes::{
    DeletedResponse, ResponseItems, ResponseObject, ResponsesEvent, ResponsesRequestBody,
};
use model_boss_openapi::{Operation, Tag};
use model_boss_protocol::ErrorCode;
use schemars::JsonSchema;

use super::models::{EVENTS, asked};
use super::parameters::by_a_client;
use crate::api::inference::llama::TokenCount;

const ID: &str = "The id of a response.";

/// The order of a page of items.
#[derive(JsonSchema)]
#[schemars(inline, rename_all = "lowercase")]
#[allow(dead_code, reason = "the type only describes")]
enum PageOrder {
    Asc,
    Desc,
}

/// The one value of `stream`.
#[derive(JsonSchema)]
#[schemars(inline, rename_all = "lowercase")]
#[allow(dead_code, reason = "the type only describes")]
enum NoStream {
    False,
}

/// The most items of a page.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct PageLimit(
    #[schemars(range(min = 1, max = 100))]
    #[allow(dead_code, reason = "it only describes")]
    u64,
);

/// `POST /v1/responses`.
pub(crate) fn create_response() -> Operation {
    let text = "OpenAI's Responses, for any model that answers chats";
    asked::<ResponsesRequestBody, ResponseObject>(Tag::Models, "create_response", text)
        .leads_to("/id", &["get_response", "list_response_items", "cancel_response", "delete_response"])
        .passes_stream::<ResponsesEvent>(EVENTS)
        .see(&["dialects.md#openais-responses"])
        .status_of_engines()
}

/// `POST /v1/responses/input_tokens`.
pub(crate) fn response_tokens() -> Operation {
    let text = "the number of tokens of the prompt that a response would have";
    asked::<ResponsesRequestBody, TokenCount>(Tag::Models, "count_response_tokens", text).status_of_engines()
}

fn stored(id: &'static str, text: &'static str) -> Operation {
    by_a_client(Operation::new(Tag::Models, id, text)).id_of::<String>(ID).errors(&[ErrorCode::NotFound])
}

/// `GET /v1/responses/ID` and `/v1/responses/ID/input_items`.
pub(crate) fn response() -> [Operation; 2] {
    let whole = stored("get_response", "a stored response")
        .query::<NoStream>("stream", "Must be false: a response that has ended is not streamed again.")
        .passes::<ResponseObject>("the response")
        .errors(&[ErrorCode::UnsupportedByModel]);
    let items = stored("list_response_items", "the items of a stored response's request, in pages")
        .behind_id("/input_items")
        .query::<PageOrder>("order", "The order of the items; desc by default.")
        .query::<PageLimit>("limit", "The most items of the page.")
        .query::<String>("after", "The item before the page.")
        .answers::<ResponseItems>(200, "a page of items");
    [whole, items]
}

/// `POST /v1/responses/ID/cancel`.
pub(crate) fn response_orders() -> Operation {
    stored("cancel_response", "refused: no answer runs in the background")
        .behind_id("/cancel")
        .errors(&[ErrorCode::UnsupportedByModel])
}

/// `DELETE /v1/responses/ID`.
pub(crate) fn delete_response() -> Operation {
    stored("delete_response", "a stored response is forgotten").answers::<DeletedResponse>(200, "it is forgotten")
}
