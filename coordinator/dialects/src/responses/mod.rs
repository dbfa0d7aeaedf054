//! OpenAI's Responses API for every model that answers chats. A request with its items becomes a chat, and the chat's
//! answer becomes a response with items, whole or as typed events.

mod from_responses_request;
mod items;
mod refusal;
mod to_responses_answer;

pub use from_responses_request::{PREVIOUS, ResponsesRequest, from_responses_request, previous_response};
pub use items::{ItemList, ItemOrder, ItemPage};
pub use refusal::ResponsesRefusal;
pub use to_responses_answer::{OnResponse, ResponsesFromChat};

#[cfg(test)]
mod tests;
