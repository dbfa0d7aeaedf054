//! Short names of the routes that a job may have, beside their paths.

/// A short name and the route that it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobKind {
    /// The word that clients write as `kind`.
    pub name: &'static str,
    /// The path of the route.
    pub endpoint: &'static str,
}

const fn kind(name: &'static str, endpoint: &'static str) -> JobKind {
    JobKind { name, endpoint }
}

/// Every short name. Several names may mean one route; the first is shown.
pub const KINDS: &[JobKind] = &[
    kind("chat", "/v1/chat/completions"),
    kind("completions", "/v1/completions"),
    kind("responses", "/v1/responses"),
    kind("messages", "/v1/messages"),
    kind("embeddings", "/v1/embeddings"),
    kind("rerank", "/v1/rerank"),
    kind("score", "/v1/score"),
    kind("classify", "/v1/classify"),
    kind("images", "/v1/images/generations"),
    kind("diffusion", "/v1/images/generations"),
    kind("image_edits", "/v1/images/edits"),
    kind("identity", "/v1/images/edits"),
    kind("speech", "/v1/audio/speech"),
    kind("tts", "/v1/audio/speech"),
    kind("transcription", "/v1/audio/transcriptions"),
    kind("translation", "/v1/audio/translations"),
];

/// The short name of a route, or its path where there is none.
pub fn kind_of_endpoint(endpoint: &str) -> &str {
    KINDS.iter().find(|kind| kind.endpoint == endpoint).map_or(endpoint, |kind| kind.name)
}
