//! Bodies of requests: the fields that scheduling needs, the meaning of the names, and the body that goes on.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use model_boss_core::Target;
use model_boss_http::body::OpenBody;
use model_boss_http::form::{FormBody, FormFiles};
use model_boss_http::peek::{ANONYMOUS, BodyChanges, Peeked, ThinkingSource, peek};
use model_boss_protocol::{ApiError, Category, ClientId};
use model_boss_tasks::{NameQuestion, Resolved};

use super::account::Account;
use super::forward::ModelInBody;
use super::meant::name_model;
use crate::api::context::Context;

/// The beginning of the content type of forms.
const MULTIPART: &[u8] = b"multipart/";

/// A body that was read.
pub(super) struct UnderstoodBody {
    pub(super) peeked: Peeked,
    /// The body to forward.
    pub(super) body: Bytes,
    pub(super) parts: Option<Arc<FormBody>>,
    /// The meaning of the request's names.
    pub(super) resolved: Resolved,
    pub(super) model_in_body: ModelInBody,
}

/// Reads model-boss's fields of a body, and the models that its client may use (TR-1, RC-24).
pub(super) fn understand(context: &Context, body: &OpenBody, head: &Parts) -> Result<(Peeked, Resolved), ApiError> {
    understood(context, peek(body.bytes(), head, body.limits())?)
}

/// The meaning of a body's names.
pub(super) fn understood(context: &Context, mut peeked: Peeked) -> Result<(Peeked, Resolved), ApiError> {
    let client = peeked.client.get_or_insert_with(|| ClientId::from(ANONYMOUS));
    let question = NameQuestion {
        model: peeked.model.as_deref(),
        task: peeked.task.as_deref(),
        client,
        no_fallback: peeked.no_fallback,
    };
    let resolved = context.tasks.resolve(&question, &context.catalog).inspect_err(|error| {
        Account::open(&context.metrics, None).status(error.status());
    })?;
    Ok((peeked, resolved))
}

/// The fields for scheduling, the meaning of the names, and the body to forward.
pub(super) fn look(
    context: &Context,
    mut body: OpenBody,
    head: &Parts,
    only: Option<Category>,
) -> Result<UnderstoodBody, ApiError> {
    let mut peeked = peek(body.bytes(), head, body.limits())?;
    let given = peeked.model.is_some();
    name_model(context, &mut peeked, only)?;
    let (peeked, resolved) = understood(context, peeked)?;
    // A body that names its model is forwarded unchanged.
    let named = match &resolved.ladder().first.target {
        Target::Local(id) => given && resolved.is_plain() && peeked.model.as_deref() == Some(id.as_str()),
        Target::Cloud { .. } => false,
    };
    let thinking = peeked.thinking.map(ThinkingSource::Request).or(resolved.thinking.map(ThinkingSource::Task));
    let changes = BodyChanges { without_model: !named, defaults: resolved.params(), thinking };
    if peeked.is_rewritten(&changes) {
        body.rewrite(changes.size(), |body| peeked.forwarded(body, &changes))?;
    }
    let body = body.close().into_bytes();
    Ok(UnderstoodBody {
        peeked,
        body,
        parts: None,
        resolved,
        model_in_body: if named { ModelInBody::Named } else { ModelInBody::Missing },
    })
}

/// Whether a request's body is a form.
pub(super) fn is_form(head: &Parts) -> bool {
    let kind = head.headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    kind.get(..MULTIPART.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(MULTIPART))
}

/// The same of a form, whose files are not copied.
pub(super) fn look_at_form(
    context: &Context,
    body: OpenBody,
    (head, files): (&Parts, FormFiles),
    only: Option<Category>,
) -> Result<UnderstoodBody, ApiError> {
    let (mut peeked, mut form) = FormBody::read(body.bytes(), head, (files, body.limits()))?;
    name_model(context, &mut peeked, only)?;
    let (peeked, resolved) = understood(context, peeked)?;
    if let Some(defaults) = resolved.params() {
        form.add_defaults(defaults);
    }
    let body = body.close().into_bytes();
    Ok(UnderstoodBody { peeked, body, parts: Some(Arc::new(form)), resolved, model_in_body: ModelInBody::Missing })
}
