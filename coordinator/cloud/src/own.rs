//! Requests in the shape of Anthropic's API, which go to its providers as they came.

use bytes::Bytes;
use http::HeaderMap;
use model_boss_config::{Provider, ProviderKind};
use model_boss_dialects::{DialectError, DialectFault, link_refused};

/// A request of the Messages API, as its client sent it.
#[derive(Clone, Debug)]
pub struct OwnMessages {
    /// The body without `model` and without model-boss's own fields.
    pub body: Bytes,
    /// The client's name of the model, which the answer repeats.
    pub model: String,
    /// The client's headers that belong to the API.
    pub headers: HeaderMap,
    /// The place of the first link in the body. Anthropic follows links; a provider on this machine must not.
    pub link: Option<String>,
}

/// The names of the headers that belong to the Messages API.
pub const API_HEADERS: [&str; 2] = ["anthropic-version", "anthropic-beta"];

/// Whether a provider takes requests of the Messages API as they are.
pub(super) fn takes_messages(provider: &Provider) -> bool {
    provider.kind() == ProviderKind::Anthropic && provider.command().is_none()
}

impl OwnMessages {
    /// Refuses links that a provider of the operator's own might follow inside of the operator's network.
    pub(super) fn check_links(&self, provider: &Provider) -> Result<(), DialectError> {
        match &self.link {
            Some(place) if !provider.costs() => Err(DialectError {
                fault: DialectFault::Invalid,
                message: link_refused(place),
                field: Some(place.clone()),
                retry_after: None,
            }),
            _ => Ok(()),
        }
    }

    /// The body with the provider's name of the model.
    pub(super) fn body_for(&self, model: &str) -> Vec<u8> {
        let rest = self.body.get(1..).unwrap_or(b"}");
        let comma = if rest.trim_ascii() == b"}" { "" } else { "," };
        [format!("{{\"model\":{}{comma}", serde_json::Value::from(model)).as_bytes(), rest].concat()
    }
}
