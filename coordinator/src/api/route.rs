//! The table of routes. Every route has a scope with the permission that it requires. The checks that follow from the
//! scope (key, content type, body size) are made here, before the handler runs.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use model_boss_core::Principal;
use model_boss_http::body::{BodyLimits, RequestBody, Unread};
use model_boss_http::error::error_response;
use model_boss_http::headers::RequestId;
use model_boss_http::peek::named_client;
use model_boss_http::peer::Peer;
use model_boss_lease_store::Caller;
use model_boss_protocol::{ApiError, ErrorCode, ModelId};
use model_boss_tasks::{MachinePermit, ModelPermit};

use super::context::Context;

/// The callers of a route, and its requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Every caller may use the route. It reveals only whether the process works.
    Public,
    /// Clients of models may use the route. It needs a key where keys are set.
    Inference,
    /// Readers of the state may use the route. It needs a key where keys are set.
    Read,
    /// Operators may use the route. It needs a key where keys are set, and a small JSON body that a page of another
    /// site cannot send.
    Manage,
}

/// A request with the values that its handler needs.
pub(super) struct Call {
    pub(super) context: Arc<Context>,
    /// The head of the request.
    pub(super) request: http::Request<()>,
    body: Unread,
    scope: Scope,
}

/// The routes so far.
pub(super) struct Routes {
    context: Arc<Context>,
    router: Router,
    /// Method and path of each route, without its duplicates under other prefixes.
    #[cfg(test)]
    pub(super) table: Vec<(MethodFilter, String)>,
}

impl Routes {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            router: Router::new(),
            #[cfg(test)]
            table: Vec::new(),
        }
    }

    /// Adds a `GET` route.
    pub(super) fn get(self, path: &str, scope: Scope, handler: impl Handler) -> Self {
        self.add(MethodFilter::GET, path, scope, handler)
    }

    /// Adds a `POST` route.
    pub(super) fn post(self, path: &str, scope: Scope, handler: impl Handler) -> Self {
        self.add(MethodFilter::POST, path, scope, handler)
    }

    /// Adds a `PUT` route.
    pub(super) fn put(self, path: &str, scope: Scope, handler: impl Handler) -> Self {
        self.add(MethodFilter::PUT, path, scope, handler)
    }

    /// Adds a `DELETE` route.
    pub(super) fn delete(self, path: &str, scope: Scope, handler: impl Handler) -> Self {
        self.add(MethodFilter::DELETE, path, scope, handler)
    }

    fn add(mut self, method: MethodFilter, path: &str, scope: Scope, handler: impl Handler) -> Self {
        #[cfg(test)]
        self.table.push((method, path.to_owned()));
        // Routes under /v1 are also served under /api/v1, and without a prefix, because clients write base URLs in all
        // of these forms.
        let bare = path.strip_prefix("/v1").filter(|bare| bare.starts_with('/'));
        let twin = bare.map(|_| format!("/api{path}"));
        for path in std::iter::once(path).chain(twin.as_deref()).chain(bare) {
            let (context, handler) = (Arc::clone(&self.context), handler.clone());
            let route = move |request: Request| {
                let (head, body) = request.into_parts();
                let (request, body) = (http::Request::from_parts(head, ()), Unread::new(body));
                let call = Call { context: Arc::clone(&context), request, body, scope };
                let admitted = call.admit().map(|()| handler.clone().answer(call));
                async move {
                    match admitted {
                        Ok(answer) => answer.await.unwrap_or_else(|error| error_response(&error)),
                        Err(error) => error_response(&error),
                    }
                }
            };
            self.router = self.router.route(path, on(method, route));
        }
        self
    }

    /// The router of all routes. Every other path is answered in the error shape.
    pub(super) fn into_router(self) -> Router {
        self.router
            .method_not_allowed_fallback(async |request: Request| {
                let message = format!("{} does not go with {}", request.method(), request.uri().path());
                error_response(&ApiError::new(ErrorCode::MethodNotAllowed, message))
            })
            .fallback(async |request: Request| {
                let message = format!("there is no {} {}", request.method(), request.uri().path());
                error_response(&ApiError::new(ErrorCode::NotFound, message))
            })
    }
}

/// A function that answers the calls of a route.
pub(super) trait Handler: Clone + Send + Sync + 'static {
    /// Answers a call that is permitted.
    fn answer(self, call: Call) -> impl Future<Output = Result<Response, ApiError>> + Send + 'static;
}

impl<H, F> Handler for H
where
    H: Fn(Call) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response, ApiError>> + Send + 'static,
{
    fn answer(self, call: Call) -> impl Future<Output = Result<Response, ApiError>> + Send + 'static {
        self(call)
    }
}

impl Call {
    /// Checks the caller's key and the content type.
    fn admit(&self) -> Result<(), ApiError> {
        let headers = self.request.headers();
        if self.scope != Scope::Public
            && let Some(keys) = &self.context.keys
            && !offered_keys(headers).any(|key| keys.accept(key))
        {
            let message = match offered_keys(headers).next() {
                Some(_) => "this key is none of this server's",
                None => "this server needs an API key: Authorization: Bearer KEY, or x-api-key: KEY",
            };
            return Err(ApiError::new(ErrorCode::InvalidApiKey, message));
        }
        if self.scope == Scope::Manage && !is_json(headers) {
            let message = "management routes take Content-Type: application/json only";
            return Err(ApiError::new(ErrorCode::UnsupportedMediaType, message));
        }
        Ok(())
    }

    /// The principal of an order on a managing route: the client that names itself, else the operator.
    fn principal(&self) -> Result<Principal, ApiError> {
        let client = named_client(self.request.headers())?;
        Ok(client.map_or(Principal::Operator, Principal::Client))
    }

    /// Permission for an order about this model.
    pub(super) fn permit_model(&self, model: &ModelId) -> Result<ModelPermit, ApiError> {
        self.context.tasks.operate_model(self.principal()?, model.clone(), &self.context.catalog)
    }

    /// Permission for an order about every model on a device, or on the machine.
    pub(super) fn permit_machine(&self) -> Result<MachinePermit, ApiError> {
        self.context.tasks.operate_machine(self.principal()?, &self.context.catalog)
    }

    /// The request's public id.
    pub(super) fn request_id(&self) -> HeaderValue {
        let id = self.request.extensions().get::<RequestId>();
        id.map_or(HeaderValue::from_static("none"), |RequestId(id)| id.clone())
    }

    /// The user of the caller's process, as the kernel reports it for this connection.
    pub(super) fn caller(&self) -> impl Future<Output = Caller> + Send + use<> {
        let peer = self.request.extensions().get::<Peer>().cloned();
        async move {
            match peer {
                Some(peer) => peer.caller().await,
                None => Caller::Unknown,
            }
        }
    }

    /// Reads the body, up to the size that the scope permits.
    pub(super) async fn body(&mut self) -> Result<RequestBody, ApiError> {
        if let Some(coding) = self.request.headers().get(CONTENT_ENCODING).filter(|coding| *coding != "identity") {
            let coding = String::from_utf8_lossy(coding.as_bytes());
            let message = format!("the body is compressed ('{coding}'); send it as it is, without Content-Encoding");
            return Err(ApiError::new(ErrorCode::UnsupportedMediaType, message));
        }
        let limits = &self.context.limits;
        let size = match self.scope {
            Scope::Inference => limits.inference_body,
            Scope::Public | Scope::Read | Scope::Manage => limits.management_body,
        };
        let limits = BodyLimits { size, patience: limits.header_timeout, json: limits.json() };
        self.body.take().read(limits, self.context.memory.holder()).await
    }
}

fn offered_keys(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|text| {
        let (scheme, key) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    // Some clients send both headers, and the first may hold a key for another server.
    bearer.into_iter().chain(headers.get("x-api-key").and_then(|key| key.to_str().ok()))
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(kind)) = headers.get(CONTENT_TYPE).map(|value| value.to_str()) else { return false };
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}
