//! The table of routes. Every route has a scope with the permission that it requires. The checks that follow from the
//! scope (key, content type, body size) are made here, before the handler runs.

use std::future::Future;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use model_boss_core::Principal;
use model_boss_http::body::{BodyLimits, RequestBody, Unread};
use model_boss_http::error::{ErrorShape, error_response};
use model_boss_http::headers::RequestId;
use model_boss_http::peek::named_client;
use model_boss_http::peer::Peer;
use model_boss_lease_store::Caller;
use model_boss_openapi::{DescribedRoute, ErrorDialect, OpenApiDocument, RouteAccess, RowOperations, methods_of};
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

impl Scope {
    /// The name of the scope, as keys have it.
    const fn name(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Inference => "inference",
            Self::Read => "read",
            Self::Manage => "manage",
        }
    }

    /// Whether the route takes `Content-Type: application/json` only.
    const fn takes_json_only(self) -> bool {
        matches!(self, Self::Manage)
    }

    /// The scope for the API's description.
    const fn access(self) -> RouteAccess {
        match self {
            Self::Public => RouteAccess::Public,
            _ => RouteAccess::Scope { name: self.name(), json_only: self.takes_json_only() },
        }
    }
}

/// A request with the values that its handler needs.
pub(super) struct Call {
    pub(super) context: Arc<Context>,
    /// The head of the request.
    pub(super) request: http::Request<()>,
    body: Unread,
    scope: Scope,
    /// The description of the API.
    pub(super) description: ApiDescription,
}

/// The description of all routes. It is made once, when the table is complete.
pub(super) type ApiDescription = Arc<OnceLock<DescribedApi>>;

/// All routes, and the text of their document.
pub(super) struct DescribedApi {
    pub(super) text: Bytes,
    table: Vec<DescribedRoute>,
}

impl DescribedApi {
    /// The answer to a method that a path does not have.
    fn method_not_allowed(&self, method: &Method, path: &str) -> Response {
        let message = format!("{method} does not go with {path}");
        let mut response = error_response(&ApiError::new(ErrorCode::MethodNotAllowed, message));
        let methods = HeaderValue::from_str(&methods_of(&self.table, path).join(","));
        if let Some(methods) = methods.ok().filter(|methods| !methods.is_empty()) {
            response.headers_mut().insert(ALLOW, methods);
        }
        response
    }

    /// Whether a path is an id with a verb, which takes other methods than the id.
    fn takes_other_methods(&self, method: &Method, path: &str) -> bool {
        let methods = methods_of(&self.table, path);
        !methods.is_empty() && !methods.contains(&method.as_str())
    }
}

/// The routes so far.
pub(super) struct Routes {
    context: Arc<Context>,
    router: Router,
    description: ApiDescription,
    /// The description of each route.
    pub(super) table: Vec<DescribedRoute>,
}

impl Routes {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self { context, router: Router::new(), description: ApiDescription::default(), table: Vec::new() }
    }

    /// Adds a `GET` route.
    pub(super) fn get(self, path: &str, scope: Scope, handler: impl Handler, told: impl Into<RowOperations>) -> Self {
        self.add((MethodFilter::GET, "GET"), path, scope, handler, told.into())
    }

    /// Adds a `POST` route.
    pub(super) fn post(self, path: &str, scope: Scope, handler: impl Handler, told: impl Into<RowOperations>) -> Self {
        self.add((MethodFilter::POST, "POST"), path, scope, handler, told.into())
    }

    /// Adds a `PUT` route.
    pub(super) fn put(self, path: &str, scope: Scope, handler: impl Handler, told: impl Into<RowOperations>) -> Self {
        self.add((MethodFilter::PUT, "PUT"), path, scope, handler, told.into())
    }

    /// Adds a `DELETE` route.
    pub(super) fn delete(
        self,
        path: &str,
        scope: Scope,
        handler: impl Handler,
        told: impl Into<RowOperations>,
    ) -> Self {
        self.add((MethodFilter::DELETE, "DELETE"), path, scope, handler, told.into())
    }

    fn add(
        mut self,
        (filter, method): (MethodFilter, &'static str),
        path: &str,
        scope: Scope,
        handler: impl Handler,
        operations: RowOperations,
    ) -> Self {
        // Routes under /v1 are also served under /api/v1, and without a prefix, because clients write base URLs in all
        // of these forms.
        let bare = path.strip_prefix("/v1").filter(|bare| bare.starts_with('/'));
        let twin = bare.map(|_| format!("/api{path}"));
        let dialect = match ErrorShape::of(path, &HeaderMap::new()) {
            ErrorShape::OpenAi => ErrorDialect::OpenAi,
            ErrorShape::Anthropic => ErrorDialect::Anthropic,
            ErrorShape::Ollama => ErrorDialect::Ollama,
        };
        let has_verbs = path.contains("{*") && !operations.ids_have_slashes();
        self.table.push(DescribedRoute {
            method,
            path: path.to_owned(),
            also_at: twin.iter().map(String::as_str).chain(bare).map(str::to_owned).collect(),
            access: scope.access(),
            dialect,
            operations,
        });
        for path in std::iter::once(path).chain(twin.as_deref()).chain(bare) {
            let (context, handler) = (Arc::clone(&self.context), handler.clone());
            let description = Arc::clone(&self.description);
            let route = move |request: Request| {
                let (head, body) = request.into_parts();
                let (request, body) = (http::Request::from_parts(head, ()), Unread::new(body));
                let (context, description) = (Arc::clone(&context), Arc::clone(&description));
                let call = Call { context, request, body, scope, description };
                let refused = if has_verbs { call.with_anothers_verb() } else { None };
                let admitted = call.admit().map(|()| handler.clone().answer(call));
                async move {
                    match (refused, admitted) {
                        (Some(refused), _) => refused,
                        (None, Ok(answer)) => answer.await.unwrap_or_else(|error| error_response(&error)),
                        (None, Err(error)) => error_response(&error),
                    }
                }
            };
            self.router = self.router.route(path, on(filter, route));
        }
        self
    }

    /// The description of the routes so far.
    pub(super) fn described(&self) -> OpenApiDocument {
        OpenApiDocument::of(env!("CARGO_PKG_VERSION"), &self.table)
    }

    /// The router of all routes. Every other path is answered in the error shape.
    pub(super) fn into_router(self) -> Router {
        let text = Bytes::from(self.described().value().to_string());
        let Self { router, description, table, .. } = self;
        description.get_or_init(|| DescribedApi { text, table });
        router
            .method_not_allowed_fallback(async move |request: Request| {
                let (method, path) = (request.method(), request.uri().path());
                description.get().map_or_else(Response::default, |api| api.method_not_allowed(method, path))
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
    /// The refusal of a path whose verb belongs to another method. Without it, the verb would be a part of the id.
    fn with_anothers_verb(&self) -> Option<Response> {
        let (method, path) = (self.request.method(), self.request.uri().path());
        let api = self.description.get().filter(|api| api.takes_other_methods(method, path))?;
        Some(api.method_not_allowed(method, path))
    }

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
        // A route that ignores such a header refuses a wrong one too, so that its sender learns of it at once.
        if self.scope != Scope::Public {
            named_client(headers)?;
        }
        if self.scope.takes_json_only() && !is_json(headers) {
            let message = "management routes take DescribedContent-Type: application/json only";
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
            let message =
                format!("the body is compressed ('{coding}'); send it as it is, without DescribedContent-Encoding");
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
