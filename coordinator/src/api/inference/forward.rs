//! A request on its way to the place that serves it.

use std::sync::Arc;

use bytes::Bytes;
use http::header::HeaderValue;
use model_boss_cloud::{Clouds, OwnMessages};
use model_boss_config::JsonLimits;
use model_boss_dialects::ContextWish;
use model_boss_http::form::FormBody;
use model_boss_http::memory::MemoryBudget;
use model_boss_http::upstream::Outgoing;
use model_boss_protocol::ClientId;
use model_boss_traces::RequestTrace;
use tokio::time::Instant;

use super::adapted::RungAdapters;
use super::answer_form::AnswerForm;

/// A request in the form for a worker.
#[derive(Clone)]
pub(crate) struct Forward {
    /// The worker's path.
    pub(super) path: &'static str,
    /// The body without model-boss's own fields; of a form, all of it.
    pub(super) body: Bytes,
    /// The form's fields, and the places of its files in the body.
    pub(super) parts: Option<Arc<FormBody>>,
    /// The public id of the request.
    pub(super) request_id: HeaderValue,
    /// The client's deadline.
    pub(super) deadline: Option<Instant>,
    /// The form of the answer.
    pub(super) form: AnswerForm,
    /// Whether the body was translated from another API.
    pub(super) is_translated: bool,
    /// Whether the body names its model already.
    pub(super) model_in_body: ModelInBody,
    /// The client's wish about a context that is too small.
    pub(super) wish: ContextWish,
    /// Access to the providers of cloud rungs.
    pub(super) cloud: CloudAccess,
    /// The budget from which the answer and a translated body take their memory.
    pub(super) memory: MemoryBudget,
    /// Limits on a body that is parsed.
    pub(super) limits: JsonLimits,
    /// The adapters that rungs of the request have.
    pub(super) adapters: RungAdapters,
    /// The trace of the request; empty without traces.
    pub(super) trace: RequestTrace,
    /// The request in the shape of the client's API, for providers of that API.
    pub(super) own: Option<Arc<OwnMessages>>,
}

/// The providers, and this client's limit of spending at them.
#[derive(Clone)]
pub(crate) struct CloudAccess {
    pub(super) clouds: Arc<Clouds>,
    pub(super) client: ClientId,
    /// The limit in US dollars a day, if there is one.
    pub(super) daily_limit: Option<f64>,
}

/// Whether a body has a `model`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelInBody {
    /// The model that serves it.
    Named,
    /// The request names no model. The name is inserted once it is known.
    Missing,
}

impl Forward {
    /// The type of the body.
    pub(super) fn content_type(&self) -> HeaderValue {
        let json = HeaderValue::from_static("application/json");
        self.parts.as_ref().map_or(json, |parts| parts.content_type())
    }

    /// The body with `model` as its model.
    pub(super) fn body_for(&self, model: &str) -> Outgoing {
        if let Some(parts) = &self.parts {
            return parts.for_model(model, &self.body);
        }
        if self.model_in_body == ModelInBody::Named {
            return Outgoing::new(self.body.clone(), Bytes::new());
        }
        // After the brace, the body has another field, or ends.
        let rest = if self.body.is_empty() { Bytes::from_static(b"}") } else { self.body.slice(1..) };
        let comma = if rest == "}" { "" } else { "," };
        let first = format!("{{\"model\":{}{comma}", serde_json::Value::from(model));
        Outgoing::new(Bytes::from(first), rest)
    }
}
