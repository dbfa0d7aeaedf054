//! The description of all routes, made once: the text of the document, the methods of a path, and the routes that take
//! jobs.

use axum::response::Response;
use bytes::Bytes;
use http::header::ALLOW;
use http::{HeaderValue, Method};
use model_boss_access::KeyScope;
use model_boss_http::error::error_response;
use model_boss_openapi::{DescribedRoute, RouteAccess, Tag, methods_of};
use model_boss_protocol::{ApiError, ErrorCode};

/// All routes, and the text of their document.
pub(super) struct DescribedApi {
    pub(super) text: Bytes,
    pub(super) table: Vec<DescribedRoute>,
}

impl DescribedApi {
    /// Whether a request to this path may wait as a job: one to a model, whose answer ends by itself.
    pub(super) fn takes_jobs(&self, path: &str) -> bool {
        let is_inference = |route: &DescribedRoute| matches!(&route.access, RouteAccess::Scopes { names, .. } if names == &[KeyScope::Inference.as_str()]);
        let asks_a_model = |route: &DescribedRoute| route.operations.tags().any(Tag::asks_models);
        let row = self.table.iter().find(|route| route.method == "POST" && route.path == path);
        row.is_some_and(|route| is_inference(route) && asks_a_model(route) && !path.contains('*'))
            && path != "/api/pull"
    }

    /// The paths to which a job may go.
    pub(super) fn job_paths(&self) -> Vec<&str> {
        let paths = self.table.iter().filter(|route| route.method == "POST").map(|route| route.path.as_str());
        paths.filter(|path| self.takes_jobs(path)).collect()
    }

    /// The answer to a method that a path does not have.
    pub(super) fn method_not_allowed(&self, method: &Method, path: &str) -> Response {
        let message = format!("{method} does not go with {path}");
        let mut response = error_response(&ApiError::new(ErrorCode::MethodNotAllowed, message));
        let methods = HeaderValue::from_str(&methods_of(&self.table, path).join(","));
        if let Some(methods) = methods.ok().filter(|methods| !methods.is_empty()) {
            response.headers_mut().insert(ALLOW, methods);
        }
        response
    }

    /// The refusal of a path whose verb belongs to another method. Without it, the verb would be a part of the id.
    pub(super) fn anothers_verb(&self, method: &Method, path: &str) -> Option<Response> {
        let methods = methods_of(&self.table, path);
        let is_anothers = !methods.is_empty() && !methods.contains(&method.as_str());
        is_anothers.then(|| self.method_not_allowed(method, path))
    }
}
