//! The adapters that the rungs of a request have, and their way to the worker that serves it.

use std::collections::BTreeMap;
use std::sync::Arc;

use model_boss_catalog::LiveCatalog;
use model_boss_http::upstream::Upstream;
use model_boss_protocol::{ApiError, Category, ErrorCode};
use model_boss_tasks::Resolved;

use crate::adapters::GiveError;
use crate::worker::Worker;

/// The adapters of rungs, by the rungs' positions, and where their files are.
#[derive(Clone)]
pub(crate) struct RungAdapters {
    names: Arc<BTreeMap<usize, String>>,
    catalog: Arc<LiveCatalog>,
}

impl RungAdapters {
    /// Those of a request.
    pub(super) fn new(resolved: &Resolved, catalog: &Arc<LiveCatalog>) -> Self {
        Self { names: Arc::new(resolved.adapters.clone()), catalog: Arc::clone(catalog) }
    }

    /// The adapter of the rung at this position; none for the model alone.
    fn of(&self, position: usize) -> Option<&str> {
        self.names.get(&position).map(String::as_str)
    }

    /// The name of the model that answers, with the rung's adapter.
    pub(super) fn served(&self, model: String, position: usize) -> String {
        match self.of(position) {
            Some(adapter) => format!("{model}:{adapter}"),
            None => model,
        }
    }

    /// Has the worker load the adapter of the rung at this position, unless it has it or there is none.
    pub(super) async fn give(
        &self,
        (worker, upstream): (&Worker, &Arc<Upstream>),
        position: usize,
    ) -> Result<(), GiveError> {
        let Some(adapter) = self.of(position) else { return Ok(()) };
        let model = &worker.model;
        let refused = |code, message: String| GiveError::Refused(ApiError::new(code, message).with_param("model"));
        // It may have been unloaded while the request waited.
        let gone = || refused(ErrorCode::ModelNotFound, format!("model '{model}' has no adapter '{adapter}' any more"));
        let source = self.catalog.adapters(model).remove(adapter).ok_or_else(gone)?;
        if worker.backend.is_foreign() {
            let message = format!("{} takes no adapters of model-boss", worker.title());
            return Err(refused(ErrorCode::UnsupportedByModel, message));
        }
        let category = self.catalog.current().get(model).map(|model| model.description.category);
        if let Some(category) = category.filter(|category| *category != Category::Llm) {
            let message = format!("adapters are for models that write text, and '{model}' is {category}");
            return Err(refused(ErrorCode::UnsupportedByModel, message));
        }
        worker.adapters.give((model, upstream), adapter, &source).await
    }
}
