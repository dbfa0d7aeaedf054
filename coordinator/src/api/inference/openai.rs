//! `POST /v1/chat/completions` and `/v1/completions`: from a body to a place in the queue, and from an answer to HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use model_boss_cloud::OwnMessages;
use model_boss_core::{RequestOutcome, Scheduler, Target};
use model_boss_dialects::{AnswerKind, ContextWish, Names};
use model_boss_host::clocks::in_a;
use model_boss_http::body::{OpenBody, RequestBody};
use model_boss_http::form::FormFiles;
use model_boss_http::headers::THINKING;
use model_boss_http::peek::{ANONYMOUS, Peeked};
use model_boss_protocol::{ApiError, Category, ClientId, Priority, RequestId};
use model_boss_tasks::Resolved;
use model_boss_traces::AskedFacts;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::account::Account;
use super::adapted::RungAdapters;
use super::allowance::TokenMeter;
use super::answer::{Answer, Content, obtain};
use super::answer_form::{AnswerForm, speech_form};
use super::forward::{CloudAccess, Forward};
use super::marks::{Marks, piece_headers};
use super::meant::{is_of, is_passed_to, own_category};
use super::picture_work::picture_work;
use super::reshape::PassedShape;
use super::sound::SoundBody;
use super::stream::{CommentTimes, Explanation, StreamBody};
use super::understood_body::{UnderstoodBody, is_form, look, look_at_form};
use super::usage::usage_in;
use crate::api::context::Context;
use crate::api::route::Call;
use crate::refusals::in_client_names;
use crate::scheduling::{Ticket, Wish};

/// `POST /v1/chat/completions`.
pub(super) async fn chat_completions(call: Call) -> Result<Response, ApiError> {
    infer(call, InferenceRoute::at("/v1/chat/completions", Category::Llm)).await
}

/// `POST /v1/completions`.
pub(crate) async fn completions(call: Call) -> Result<Response, ApiError> {
    infer(call, InferenceRoute::at("/v1/completions", Category::Llm)).await
}

/// The same of a body that was read already.
pub(super) async fn completions_of(call: Call, body: RequestBody) -> Result<Response, ApiError> {
    infer_body(call, body, InferenceRoute::at("/v1/completions", Category::Llm)).await
}

/// `POST /v1/embeddings`: of texts, and of images by models that read both.
pub(crate) async fn embeddings(call: Call) -> Result<Response, ApiError> {
    infer(call, InferenceRoute::at("/v1/embeddings", Category::Embedding).or(Category::Vision)).await
}

/// `POST /embed`, as text-embeddings-inference has it.
pub(crate) async fn embed(call: Call) -> Result<Response, ApiError> {
    infer(call, InferenceRoute::at("/embed", Category::Embedding).unnamed()).await
}

/// `POST /embed_all`, as text-embeddings-inference has it.
pub(crate) async fn embed_all(call: Call) -> Result<Response, ApiError> {
    infer(call, InferenceRoute::at("/embed_all", Category::Embedding).unnamed()).await
}

/// `POST /predict`, as text-embeddings-inference has it.
pub(crate) async fn predict(call: Call) -> Result<Response, ApiError> {
    infer(call, InferenceRoute::at("/predict", Category::Reranking).unnamed()).await
}

/// `POST /v1/rerank` and its other names.
pub(crate) async fn rerank(call: Call) -> Result<Response, ApiError> {
    infer(call, InferenceRoute::at("/v1/rerank", Category::Reranking)).await
}

/// `POST /v1/score`.
pub(crate) async fn score(call: Call) -> Result<Response, ApiError> {
    infer(call, InferenceRoute::at("/v1/score", Category::Reranking)).await
}

/// `POST /v1/classify`: by a model's own labels, or by those of the request.
pub(crate) async fn classify(call: Call) -> Result<Response, ApiError> {
    infer(call, InferenceRoute::at("/v1/classify", Category::Reranking).or(Category::Vision)).await
}

/// The demands of a route on the model and its answer, apart from the body.
#[derive(Clone, Copy, Debug)]
pub(super) struct InferenceRoute {
    /// The path in OpenAI's API, or the worker's.
    path: &'static str,
    /// The category of models that answer it; `None`: every model does, with what is its own.
    category: Option<Category>,
    /// Another category whose models answer it, too.
    other: Option<Category>,
    /// Whether a request that names no model is for the only one of the category; of those that write texts, where the
    /// route has no category.
    may_be_unnamed: bool,
    /// The client's wish about a context that is too small.
    context: ContextWish,
    /// Whether the request was translated from another API.
    is_translated: bool,
    /// The files of its body, where that is a form.
    form: Option<FormFiles>,
    /// Whether its body may be JSON as well.
    or_json: bool,
    /// Whether only models of this machine have the route.
    is_local: bool,
}

impl InferenceRoute {
    /// A question whose prompt is refused if it is too long.
    pub(super) fn at(path: &'static str, category: Category) -> Self {
        Self::of(path, Some(category))
    }

    /// A question about the vocabulary of the model that is named.
    pub(super) fn about_tokens(path: &'static str) -> Self {
        Self::of(path, None).unnamed()
    }

    fn of(path: &'static str, category: Option<Category>) -> Self {
        let context = ContextWish::default();
        Self {
            path,
            category,
            other: None,
            may_be_unnamed: false,
            context,
            is_translated: false,
            form: None,
            or_json: false,
            is_local: false,
        }
    }

    /// The same question, which models of this category answer, too.
    pub(super) const fn or(self, other: Category) -> Self {
        Self { other: Some(other), ..self }
    }

    /// The same question in a form with these files.
    pub(super) const fn form(self, files: FormFiles) -> Self {
        Self { form: Some(files), ..self }
    }

    /// The same question, which may come in JSON as well.
    pub(super) const fn or_json(self) -> Self {
        Self { or_json: true, ..self }
    }

    /// The same question, which no provider answers.
    pub(super) const fn here(self) -> Self {
        Self { is_local: true, ..self }
    }

    /// The same question by clients whose API has no names of models.
    pub(super) const fn unnamed(self) -> Self {
        Self { may_be_unnamed: true, ..self }
    }

    /// The same question with this wish about a context that is too small.
    pub(super) const fn within(self, context: ContextWish) -> Self {
        Self { context, ..self }
    }
}

pub(super) async fn infer(mut call: Call, asked: InferenceRoute) -> Result<Response, ApiError> {
    let body = call.body().await?;
    infer_body(call, body, asked).await
}

/// Serves a request whose body was read, or made, already.
pub(super) async fn infer_body(call: Call, body: RequestBody, asked: InferenceRoute) -> Result<Response, ApiError> {
    infer_shapes(call, body, None, asked).await
}

/// The same of a request in a provider's own shape, beside its translation.
async fn infer_shapes(
    call: Call,
    body: RequestBody,
    own: Option<OwnShape>,
    asked: InferenceRoute,
) -> Result<Response, ApiError> {
    let InferenceRoute { path, category, other, may_be_unnamed, context: wish, is_translated, is_local, .. } = asked;
    let only = may_be_unnamed.then(|| category.unwrap_or(Category::Llm));
    let request_id = call.request_id();
    let trace = call.trace();
    let Call { context, request, .. } = call;
    let (looking, head) = (Arc::clone(&context), request.into_parts().0);
    let form = asked.form.filter(|_| !asked.or_json || is_form(&head));
    let look = move |body: OpenBody| match form {
        Some(files) => look_at_form(&looking, body, (&head, files), only),
        None => look(&looking, body, &head, only),
    };
    let UnderstoodBody { peeked, body, parts, mut resolved, model_in_body } = body.open(look).await?;
    let form = match AnswerKind::of(path) {
        AnswerKind::Speech => speech_form(&body)?,
        kind if peeked.stream && kind.may_stream() => AnswerForm::Events,
        _ => AnswerForm::Whole,
    };
    if own.as_ref().is_some_and(|own| own.is_only) {
        let takes = |target: &Target| is_passed_to(&context, target);
        resolved.permit = resolved.permit.only(takes);
    }
    admit(&context, &resolved)?;
    if is_local {
        // The answer of a model of another rung would differ in more than its text.
        resolved.permit = resolved.permit.first_only();
        own_category(&context, &resolved.ladder().first.target)?;
    }
    let category = match category {
        Some(category) => match other {
            // The model that is asked first decides; no other rung has vectors that can be compared with its own.
            Some(other) if is_of(&context, &resolved.ladder().first.target, other) => other,
            _ => category,
        },
        None => {
            // A model of another rung has another vocabulary.
            resolved.permit = resolved.permit.first_only();
            own_category(&context, &resolved.ladder().first.target)?
        }
    };
    let marks = Marks { request_id: request_id.clone(), unknown: peeked.unknown.clone() };

    let deadline = peeked.budget.or(resolved.budget).map(in_a);
    let cloud = CloudAccess {
        clouds: Arc::clone(&context.clouds),
        client: peeked.client.clone().unwrap_or_else(|| ClientId::from(ANONYMOUS)),
        daily_limit: resolved.profile.daily_spend_usd,
    };
    if trace.is_on() {
        trace.asked(&AskedFacts {
            path,
            model: peeked.model.as_deref().unwrap_or_else(|| first_name(&resolved)),
            client: cloud.client.as_str(),
            priority: peeked.priority.or(resolved.priority).map(Priority::number),
            is_stream: form != AnswerForm::Whole,
        });
    }
    let meter = TokenMeter::of(&context.clouds, &cloud.client, &resolved, body.len())?;
    let unknown_guard = resolved.unknown_guard.clone();
    let adapters = RungAdapters::new(&resolved, &context.catalog);
    let work = match (AnswerKind::of(path), &parts) {
        (AnswerKind::Pictures, None) => picture_work(&body, params_of(&context, &resolved).as_ref()),
        _ => None,
    };
    let (ticket, account) = submit(&context, peeked, resolved, category, (deadline, work));
    let account = account.metered(meter).traced(trace.clone());
    let (memory, limits) = (context.memory.clone(), context.limits.json());
    let forward = Forward {
        path,
        body,
        parts,
        request_id,
        deadline,
        form,
        is_translated,
        model_in_body,
        wish,
        cloud,
        memory,
        limits,
        adapters,
        trace,
        own: own.map(|own| Arc::new(own.request)),
    };
    let request = ticket.request();
    let answer =
        async move { obtain(ticket, forward, account).await.map_err(|error| naming_guard(error, unknown_guard)) };
    if form == AnswerForm::Events {
        return streamed(&context, request, answer, marks).await;
    }
    Ok(respond(answer.await?, &marks, comment_times(&context)))
}

/// The fields that the manifest of the first model sets.
fn params_of(context: &Context, resolved: &Resolved) -> Option<BTreeMap<String, Value>> {
    let Target::Local(id) = &resolved.ladder().first.target else { return None };
    context.catalog.current().get(id).map(|model| model.manifest.params.clone())
}

/// The name of the first model that may answer.
fn first_name(resolved: &Resolved) -> &str {
    match &resolved.ladder().first.target {
        Target::Local(id) => id.as_str(),
        Target::Cloud { model, .. } => model,
    }
}

/// Checks that the files of the only model that may answer are there. Of a ladder, the other rungs may answer: pulls of
/// those that are absent begin where `auto_pull` says so, and the request does not wait for them.
fn admit(context: &Context, resolved: &Resolved) -> Result<(), ApiError> {
    let catalog = context.catalog.current();
    let ladder = resolved.ladder();
    let admitted = |target: &Target| match target {
        Target::Local(id) => catalog.get(id).map_or(Ok(()), |model| context.pulls.admit(model)),
        Target::Cloud { .. } => Ok(()),
    };
    let first = admitted(&ladder.first.target);
    let others: Vec<_> = ladder.rest.iter().map(|rung| admitted(&rung.target)).collect();
    if others.is_empty() { first } else { Ok(()) }
}

/// The answer to a request that was translated from another API. Errors name the client's own fields.
pub(super) async fn infer_translated(
    call: Call,
    (request, names): (RequestBody, &Names),
    asked: InferenceRoute,
) -> Result<Response, ApiError> {
    let asked = InferenceRoute { is_translated: true, ..asked };
    infer_body(call, request, asked).await.map_err(|error| in_client_names(names, error))
}

/// A request in a provider's own shape.
pub(super) struct OwnShape {
    pub(super) request: OwnMessages,
    /// Whether the request has no translation, so that only providers of this shape can answer.
    pub(super) is_only: bool,
}

/// The same for a request that providers of its API get in its own shape.
pub(super) async fn infer_messages(
    call: Call,
    (request, names): (RequestBody, &Names),
    own: Option<OwnShape>,
) -> Result<Response, ApiError> {
    let asked = InferenceRoute { is_translated: true, ..InferenceRoute::at("/v1/chat/completions", Category::Llm) };
    infer_shapes(call, request, own, asked).await.map_err(|error| in_client_names(names, error))
}

/// Adds the reason why cloud fallback is off to an error that a cloud rung might have prevented.
fn naming_guard(mut error: ApiError, unknown_guard: Option<String>) -> ApiError {
    if let Some(unknown) = unknown_guard {
        error.message = format!("{}; {unknown}", error.message);
    }
    error
}

fn submit(
    context: &Arc<Context>,
    peeked: Peeked,
    resolved: Resolved,
    category: Category,
    (deadline, work): (Option<Instant>, Option<u64>),
) -> (Ticket, Account) {
    let known = match &resolved.ladder().first.target {
        Target::Local(id) => context.catalog.current().get(id).map(|model| model.description.id.clone()),
        Target::Cloud { .. } => None,
    };
    let account = Account::open(&context.metrics, known.as_ref());
    let ticket = context.scheduling.submit(Wish {
        permit: resolved.permit,
        category,
        priority: peeked.priority.or(resolved.priority),
        deadline,
        keep_alive: peeked.keep_alive.or(resolved.keep_alive),
        work,
    });
    (ticket, account)
}

/// Serves a streamed request. The headers wait for the answer, so that an early failure keeps its status. When the
/// answer is late, the headers are sent without it, and comments keep the connection alive (RC-12).
async fn streamed(
    context: &Arc<Context>,
    request: RequestId,
    answer: impl Future<Output = Result<Answer, ApiError>> + Send + 'static,
    marks: Marks,
) -> Result<Response, ApiError> {
    let times = comment_times(context);
    let mut pending = Box::pin(answer);
    match timeout(times.first, &mut pending).await {
        Ok(answer) => Ok(respond(answer?, &marks, times)),
        Err(_) => {
            let scheduling = context.scheduling.clone();
            let explain = move || -> Explanation {
                let scheduling = scheduling.clone();
                let words = move |scheduler: &Scheduler, _| Some(scheduler.why(request)?.to_string());
                Box::pin(async move { scheduling.view(words).await.flatten() })
            };
            let mut response = Response::new(Body::new(StreamBody::waiting(pending, explain, times)));
            marks.stream_headers(response.headers_mut());
            Ok(response)
        }
    }
}

fn comment_times(context: &Context) -> CommentTimes {
    CommentTimes { first: context.sse.first_comment, interval: context.sse.interval }
}

/// Converts an answer that has begun to HTTP.
fn respond(mut answer: Answer, marks: &Marks, times: CommentTimes) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    *headers = std::mem::take(&mut answer.headers);
    if let Some(words) = answer.thinking {
        headers.insert(THINKING, HeaderValue::from_static(words));
    }
    marks.headers(headers);
    answer.served.headers(headers);
    match answer.content {
        Content::Sound { ref kind, .. } => {
            headers.insert(CONTENT_TYPE, kind.clone());
            piece_headers(headers);
            *response.body_mut() = Body::new(SoundBody::begun(answer));
        }
        Content::Stream { .. } => {
            marks.stream_headers(headers);
            *response.body_mut() = Body::new(StreamBody::begun(answer, times));
        }
        Content::Whole(body) => {
            if answer.is_own {
                response.extensions_mut().insert(PassedShape);
            }
            answer.account.used(usage_in(&body));
            answer.account.status(answer.status.as_u16());
            answer.ticket.finish(RequestOutcome::Answered, answer.account.tokens());
            response.headers_mut().entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
            *response.body_mut() = Body::from(body);
        }
    }
    response
}
