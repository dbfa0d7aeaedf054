//! The table of routes. Every route has a scope with the permission that it requires. The checks that follow from the
//! scope (key, content type, body size) are made here, before the handler runs.

use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method};
use model_boss_access::{KeyRecord, KeyScope};
use model_boss_core::Principal;
use model_boss_http::body::{BodyLimits, BodyPieces, RequestBody, Unread};
use model_boss_http::error::{ErrorShape, error_response};
use model_boss_http::headers::RequestId;
use model_boss_http::peek::{ANONYMOUS, KeyClient, client_of, named_client};
use model_boss_http::peer::Peer;
use model_boss_lease_store::Caller;
use model_boss_openapi::{DescribedRoute, ErrorDialect, OpenApiDocument, RouteAccess, RowOperations};
use model_boss_protocol::{ApiError, ByteCount, ClientId, ErrorCode, ModelId};
use model_boss_tasks::{CancelPermit, MachinePermit, ModelPermit, cancel_requests};
use model_boss_traces::{RequestHead, RequestTrace};

use super::context::Context;
use super::described_api::DescribedApi;
use crate::audit::{AuditedOrder, OrderHead};
use crate::jobs::JobSender;
use crate::keys::RequestSender;

/// The callers of a route, and its requirements. All but public routes need a key where there are keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Every caller may use the route. It reveals only whether the process works.
    Public,
    /// Every holder of a valid key may use the route, whatever the key permits.
    Held,
    /// Clients of models may use the route.
    Inference,
    /// Clients of models and readers of the state may use the route: it lists the models.
    Models,
    /// Readers of the state may use the route.
    Read,
    /// Operators may use the route. It needs a small JSON body that a page of another site cannot send.
    Manage,
    /// Holders of leases may use the route, with a body as for operators.
    Lease,
    /// Holders of leases and readers of the state may use the route.
    Leases,
    /// Only an operator may use the route.
    Admin,
}

impl Scope {
    /// The scopes of keys of which one is needed; none for public routes.
    pub(super) const fn needs(self) -> &'static [KeyScope] {
        match self {
            Self::Public => &[],
            Self::Held => KeyScope::ALL.as_slice(),
            Self::Inference => &[KeyScope::Inference],
            Self::Models => &[KeyScope::Inference, KeyScope::Read],
            Self::Read => &[KeyScope::Read],
            Self::Manage => &[KeyScope::Manage],
            Self::Lease => &[KeyScope::Lease],
            Self::Leases => &[KeyScope::Lease, KeyScope::Read],
            Self::Admin => &[KeyScope::Admin],
        }
    }

    /// Whether the audit log has an entry for the request. Renewals come every few seconds, and change nothing.
    fn is_audited(self, request: &http::Request<()>) -> bool {
        let is_renewal = request.method() == Method::PUT && request.uri().path() == "/api/v1/leases";
        self.is_order() && !is_renewal
    }

    /// Whether requests have traces: those that may reach a model.
    const fn is_traced(self) -> bool {
        matches!(self, Self::Inference)
    }

    /// Whether requests give orders, in a body of JSON.
    const fn is_order(self) -> bool {
        matches!(self, Self::Manage | Self::Lease)
    }

    /// The scopes for the API's description.
    fn access(self) -> RouteAccess {
        match self {
            Self::Public => RouteAccess::Public,
            _ => RouteAccess::Scopes {
                names: self.needs().iter().map(|scope| scope.as_str()).collect(),
                json_only: self.is_order(),
            },
        }
    }
}

/// A request with the values that its handler needs.
pub(super) struct Call {
    pub(super) context: Arc<Context>,
    /// The head of the request.
    pub(super) request: http::Request<()>,
    /// The sender.
    pub(super) identity: RequestSender,
    body: Unread,
    scope: Scope,
    order: Option<OrderRecord>,
    /// The description of the API.
    pub(super) description: ApiDescription,
}

/// The description of all routes. It is made once, when the table is complete.
pub(super) type ApiDescription = Arc<OnceLock<DescribedApi>>;

/// An order's entry in the audit log. It is written when the last copy is dropped.
#[derive(Clone)]
struct OrderRecord(Arc<Mutex<AuditedOrder>>);

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
    pub(super) fn get(
        self,
        path: &'static str,
        scope: Scope,
        handler: impl Handler,
        told: impl Into<RowOperations>,
    ) -> Self {
        self.add((MethodFilter::GET, "GET"), path, scope, handler, told.into())
    }

    /// Adds a `POST` route.
    pub(super) fn post(
        self,
        path: &'static str,
        scope: Scope,
        handler: impl Handler,
        told: impl Into<RowOperations>,
    ) -> Self {
        self.add((MethodFilter::POST, "POST"), path, scope, handler, told.into())
    }

    /// Adds a `PUT` route.
    pub(super) fn put(
        self,
        path: &'static str,
        scope: Scope,
        handler: impl Handler,
        told: impl Into<RowOperations>,
    ) -> Self {
        self.add((MethodFilter::PUT, "PUT"), path, scope, handler, told.into())
    }

    /// Adds a `DELETE` route.
    pub(super) fn delete(
        self,
        path: &'static str,
        scope: Scope,
        handler: impl Handler,
        told: impl Into<RowOperations>,
    ) -> Self {
        self.add((MethodFilter::DELETE, "DELETE"), path, scope, handler, told.into())
    }

    fn add(
        mut self,
        (filter, method): (MethodFilter, &'static str),
        path: &'static str,
        scope: Scope,
        handler: impl Handler,
        operations: RowOperations,
    ) -> Self {
        // Routes under /v1 are also served under /api/v1, and without a prefix, because clients write base URLs in all
        // of these forms.
        let below = path.strip_prefix("/v1").filter(|bare| bare.starts_with('/'));
        let twin = below.map(|_| format!("/api{path}"));
        // llama-server has a route of its own in place of OpenAI's.
        let bare = below.filter(|bare| *bare != "/completions");
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
        let name: &'static str = path;
        for path in std::iter::once(path).chain(twin.as_deref()).chain(bare) {
            let (context, handler) = (Arc::clone(&self.context), handler.clone());
            let description = Arc::clone(&self.description);
            let traced = scope.is_traced() && context.traces.address().is_some();
            let route = move |request: Request| {
                let (head, body) = request.into_parts();
                let (mut request, body) = (http::Request::from_parts(head, ()), Unread::new(body));
                let trace = traced.then(|| begin_trace(&context, &mut request, name)).flatten();
                let (context, description) = (Arc::clone(&context), Arc::clone(&description));
                let refused = description.get().filter(|_| has_verbs);
                let refused = refused.and_then(|api| api.anothers_verb(request.method(), request.uri().path()));
                let order = scope.is_audited(&request).then(|| OrderRecord::new(&context, &request));
                let call = Call {
                    context,
                    request,
                    identity: RequestSender::Anyone,
                    body,
                    scope,
                    order: order.clone(),
                    description,
                };
                let admitted = call.admit().map(|call| handler.clone().answer(call));
                async move {
                    let answer = match (refused, admitted) {
                        (Some(refused), _) => Ok(refused),
                        (None, Ok(answer)) => answer.await,
                        (None, Err(error)) => Err(error),
                    };
                    if let Some(order) = order {
                        order.answered(&answer);
                    }
                    if let Some(trace) = trace {
                        end_trace(&trace, &answer);
                    }
                    answer.unwrap_or_else(|error| error_response(&error))
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
    /// Checks the sender's key, its scopes and the content type. The call is then that sender's.
    fn admit(mut self) -> Result<Self, ApiError> {
        let Self { context, scope, order, .. } = &self;
        let headers = self.request.headers();
        let identity = match scope {
            Scope::Public => RequestSender::Anyone,
            // A job's request has no key: its sender was known when the job was accepted.
            _ => match self.request.extensions().get::<JobSender>() {
                Some(JobSender(sender)) => sender.clone(),
                None => context.keys.identify(headers, context.owner.as_ref())?,
            },
        };
        if let Some(order) = order {
            order.note(|order| order.sent_by(identity.name()));
        }
        if !identity.permits(scope.needs()) {
            let needed: Vec<&str> = scope.needs().iter().map(|scope| scope.as_str()).collect();
            let message = format!(
                "the key of '{}' lacks the scope {}, which {} {} needs",
                identity.name(),
                needed.join(" or "),
                self.request.method(),
                self.request.uri().path()
            );
            return Err(ApiError::new(ErrorCode::InsufficientScope, message));
        }
        // A route that ignores such a header refuses a wrong one too, so that its sender learns of it at once.
        if *scope != Scope::Public {
            named_client(headers, None)?;
        }
        if scope.is_order() && !is_json(headers) {
            let message = "management routes take Content-Type: application/json only";
            return Err(ApiError::new(ErrorCode::UnsupportedMediaType, message));
        }
        if let Some(record) = identity.bound() {
            let key = KeyClient { client: record.name.clone(), may_name_others: record.is_admin() };
            self.request.extensions_mut().insert(key);
        }
        self.identity = identity;
        Ok(self)
    }

    /// The client that the request's key is, or that its headers name.
    pub(super) fn client(&self) -> Result<ClientId, ApiError> {
        Ok(self.named()?.unwrap_or_else(|| ClientId::from(ANONYMOUS)))
    }

    /// The client of a request that names this one in its body.
    pub(super) fn client_named(&self, named: Option<ClientId>) -> Result<ClientId, ApiError> {
        match named {
            None => self.client(),
            named => Ok(client_of(named, self.key())?.unwrap_or_else(|| ClientId::from(ANONYMOUS))),
        }
    }

    fn named(&self) -> Result<Option<ClientId>, ApiError> {
        named_client(self.request.headers(), self.key())
    }

    fn key(&self) -> Option<&KeyClient> {
        self.request.extensions().get()
    }

    /// A copy of the request's head, for threads that read its body.
    pub(super) fn head(&self) -> Parts {
        self.request.clone().into_parts().0
    }

    /// The principal of an order on a managing route: the operator where the sender is one and names no client, else
    /// the client.
    fn principal(&self) -> Result<Principal, ApiError> {
        let is_operator = self.identity.bound().is_none_or(KeyRecord::is_admin);
        let named = match is_operator {
            true => named_client(self.request.headers(), None)?,
            false => self.named()?,
        };
        Ok(named.map_or(Principal::Operator, Principal::Client))
    }

    /// Permission for an order about this model.
    pub(super) fn permit_model(&self, model: &ModelId) -> Result<ModelPermit, ApiError> {
        self.context.tasks.operate_model(self.principal()?, model.clone(), &self.context.catalog)
    }

    /// Permission for an order about every model on a device, or on the machine.
    pub(super) fn permit_machine(&self) -> Result<MachinePermit, ApiError> {
        self.context.tasks.operate_machine(self.principal()?, &self.context.catalog)
    }

    /// Permission to cancel requests: all of them for the operator, a client's own for a client.
    pub(super) fn permit_cancel(&self) -> Result<CancelPermit, ApiError> {
        Ok(cancel_requests(self.principal()?))
    }

    /// The request's public id.
    pub(super) fn request_id(&self) -> HeaderValue {
        let id = self.request.extensions().get::<RequestId>();
        id.map_or(HeaderValue::from_static("none"), |RequestId(id)| id.clone())
    }

    /// The trace of the request; empty without traces.
    pub(super) fn trace(&self) -> RequestTrace {
        self.request.extensions().get().cloned().unwrap_or_default()
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

    /// Reads the body piece by piece, up to this size, for a file.
    pub(super) fn pieces(&mut self, size: ByteCount) -> Result<BodyPieces, ApiError> {
        let limits = &self.context.limits;
        self.body.take().pieces(BodyLimits { size, patience: limits.header_timeout, json: limits.json() })
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
            Scope::Public | Scope::Held | Scope::Models | Scope::Read => limits.management_body,
            Scope::Manage | Scope::Lease | Scope::Leases | Scope::Admin => limits.management_body,
        };
        let limits = BodyLimits { size, patience: limits.header_timeout, json: limits.json() };
        let body = self.body.take().read(limits, self.context.memory.holder()).await?;
        if let (Some(order), Some(bytes)) = (&self.order, body.short()) {
            order.note(|order| order.asks(bytes));
        }
        Ok(body)
    }
}

/// Begins the trace of a request and keeps it with the request; `None` without traces.
fn begin_trace(context: &Context, request: &mut http::Request<()>, route: &'static str) -> Option<RequestTrace> {
    let id = request.extensions().get::<RequestId>().map(|RequestId(id)| id.clone());
    let head = RequestHead {
        method: request.method(),
        route,
        id: id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default(),
        headers: request.headers(),
    };
    let trace = Some(context.traces.begin(&head)).filter(RequestTrace::is_on)?;
    request.extensions_mut().insert(trace.clone());
    Some(trace)
}

fn end_trace(trace: &RequestTrace, answer: &Result<Response, ApiError>) {
    match answer {
        Ok(response) => trace.answered(response.status().as_u16(), None),
        Err(error) => trace.answered(error.status(), Some(error.code.as_str())),
    }
}

impl OrderRecord {
    fn new(context: &Context, request: &http::Request<()>) -> Self {
        let id = request.extensions().get::<RequestId>();
        let head = OrderHead {
            client: named_client(request.headers(), None).ok().flatten().map(|client| client.to_string()),
            from: request.extensions().get::<Peer>().map(|peer| peer.client().to_string()),
            method: request.method().to_string(),
            path: request.uri().path().to_owned(),
            request_id: id.and_then(|RequestId(id)| id.to_str().ok()).unwrap_or_default().to_owned(),
        };
        Self(Arc::new(Mutex::new(context.audit.order(head))))
    }

    fn note(&self, what: impl FnOnce(&mut AuditedOrder)) {
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn answered(&self, answer: &Result<Response, ApiError>) {
        match answer {
            Ok(response) => self.note(|order| order.answered(response.status().as_u16(), None)),
            Err(error) => self.note(|order| order.answered(error.status(), Some(error.code.as_str()))),
        }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(kind)) = headers.get(CONTENT_TYPE).map(|value| value.to_str()) else { return false };
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}
