//! Every route of a worker, and the guards that a request passes: counting, panics, the token, the limit on bodies.

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post, put};
use model_boss_protocol::{ApiError, Category, ErrorCode, headers};
use tower_http::catch_panic::CatchPanicLayer;

use super::adapters::LARGEST_ADAPTER;
use super::error::{ErrorAnswer, LARGEST_BODY};
use super::{
    adapters, chat, completions, deadline, embeddings, infill, info, native, painting, parked, rerank, score, speech,
    tei, tokens, transcripts, vision,
};
use crate::encoding::{priority_in, with_priority};
use crate::state::{Access, WorkerState};

/// Every route of a worker, behind its guards.
pub(super) fn router(worker: Arc<WorkerState>) -> Router {
    let of_category = match worker.spec.category {
        Category::Embedding => Router::new()
            .route("/v1/embeddings", post(embeddings::embed))
            .route("/embed", post(tei::embed))
            .route("/embed_all", post(tei::embed_all)),
        Category::Reranking => Router::new()
            .route("/v1/rerank", post(rerank::rank))
            .route("/v1/score", post(score::score))
            .route("/v1/classify", post(score::classify))
            .route("/predict", post(tei::predict)),
        Category::Vision => {
            Router::new().route("/v1/embeddings", post(vision::embed)).route("/v1/classify", post(vision::classify))
        }
        Category::Tts => {
            Router::new().route("/v1/audio/speech", post(speech::speak)).route("/v1/audio/voices", get(speech::voices))
        }
        Category::Transcription => Router::new()
            .route("/v1/audio/transcriptions", post(transcripts::transcribe))
            .route("/v1/audio/translations", post(transcripts::translate)),
        Category::Diffusion => Router::new()
            .route("/v1/images/generations", post(painting::generate))
            .route("/v1/images/edits", post(painting::edit)),
        Category::Llm => Router::new()
            .route("/v1/chat/completions", post(chat::complete))
            .route("/v1/completions", post(completions::complete))
            .route("/completion", post(native::complete))
            .route("/infill", post(infill::complete))
            .route("/apply-template", post(chat::apply_template))
            .route("/parked", parked_prefixes())
            .route("/adapters", get(adapters::list))
            .route("/adapters/{name}", adapter_orders()),
    };
    let of_text = match worker.spec.category {
        // Letters and phonemes of voices are no tokens of a text, and prompts of pictures are read beside the weights.
        Category::Tts | Category::Diffusion => Router::new(),
        _ => text_routes(),
    };
    let routes = of_category
        .merge(routes())
        .merge(of_text)
        .fallback(async || ErrorAnswer(ApiError::new(ErrorCode::NotFound, "a worker has no such route")))
        .method_not_allowed_fallback(async || {
            ErrorAnswer(ApiError::new(ErrorCode::MethodNotAllowed, "this route does not take this method"))
        });
    guarded(routes, worker)
}

/// The orders about one adapter, whose files are larger than other bodies.
fn adapter_orders() -> MethodRouter<Arc<WorkerState>> {
    put(adapters::load).delete(adapters::unload).layer(DefaultBodyLimit::max(LARGEST_ADAPTER))
}

/// The prefixes that are parked beyond the life of this process. Their bodies are read in pieces.
fn parked_prefixes() -> MethodRouter<Arc<WorkerState>> {
    get(parked::give_out).put(parked::take).layer(DefaultBodyLimit::disable())
}

/// The routes of every category.
fn routes() -> Router<Arc<WorkerState>> {
    Router::new()
        .route("/health", get(info::health))
        .route("/stats", get(info::stats))
        .route("/metrics", get(info::metrics))
        .route("/progress/{id}", get(info::progress))
        .route("/v1/models", get(info::models))
        .route("/v1/models/{*id}", get(info::model))
}

/// The routes of models with a vocabulary.
fn text_routes() -> Router<Arc<WorkerState>> {
    Router::new()
        .route("/tokenize", post(tokens::tokenize))
        .route("/v1/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/v1/detokenize", post(tokens::detokenize))
}

/// The layers that every request passes: counting outside, then a net for panics, the token, and the limit on bodies.
pub(super) fn guarded(routes: Router<Arc<WorkerState>>, worker: Arc<WorkerState>) -> Router {
    routes
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .layer(middleware::from_fn(deadline::within))
        .layer(middleware::from_fn_with_state(Arc::clone(&worker), require_token))
        .layer(CatchPanicLayer::custom(|_| {
            ErrorAnswer(ApiError::new(ErrorCode::Internal, "the worker failed on this request")).into_response()
        }))
        .layer(middleware::from_fn_with_state(Arc::clone(&worker), observe))
        .with_state(worker)
}

/// Lets only those in who know the spawn's token.
async fn require_token(
    State(worker): State<Arc<WorkerState>>,
    request: Request,
    next: Next,
) -> Result<Response, ErrorAnswer> {
    if let Access::Token(token) = &worker.access {
        let offered = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        if !offered.and_then(|value| value.strip_prefix("Bearer ")).is_some_and(|offered| token.matches(offered)) {
            let message = "this worker serves its coordinator only; send requests to the coordinator";
            return Err(ErrorAnswer(ApiError::new(ErrorCode::InvalidApiKey, message)));
        }
    }
    Ok(next.run(request).await)
}

/// Counts the answer and returns the request's id in it.
async fn observe(State(worker): State<Arc<WorkerState>>, request: Request, next: Next) -> Response {
    let id: Option<HeaderValue> = request.headers().get(headers::REQUEST_ID).cloned();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let priority = priority_in(request.headers());
    let asked = id.as_ref().and_then(|id| id.to_str().ok());
    let mut response = worker.meters.measure(asked, with_priority(priority, next.run(request))).await;
    if let Some(id) = id {
        response.headers_mut().insert(HeaderName::from_static(headers::REQUEST_ID), id);
    }
    worker.metrics.answered(route.as_deref().unwrap_or("none"), response.status().as_u16());
    response
}
