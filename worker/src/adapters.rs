//! The adapters that a worker has beside its model, by their names. The coordinator hands their files over: a confined
//! worker opens no others than its model's.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use model_boss_engine::{AdapterFiles, AdapterLoader, LoadedAdapter};
use model_boss_protocol::{ApiError, ErrorCode, ModelId};
use tracing::{info, warn};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The adapters of a loaded model.
pub(crate) struct AdapterTable {
    loader: Option<Arc<dyn AdapterLoader>>,
    loaded: RwLock<BTreeMap<String, Arc<LoadedAdapter>>>,
}

impl AdapterTable {
    /// None yet; `loader` is the model's, if it takes adapters.
    pub(crate) fn new(loader: Option<Arc<dyn AdapterLoader>>) -> Self {
        Self { loader, loaded: RwLock::default() }
    }

    /// The adapter that a request's `model` names behind the model's own name; none if it names the model alone.
    pub(crate) fn asked(&self, model: &ModelId, asked: Option<&str>) -> Result<Option<Arc<LoadedAdapter>>, ApiError> {
        let behind = asked.and_then(|asked| asked.strip_prefix(model.as_str())?.strip_prefix(':'));
        let Some(name) = behind else { return Ok(None) };
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        match loaded.get(name) {
            Some(adapter) => Ok(Some(Arc::clone(adapter))),
            None => {
                let known: Vec<&str> = loaded.keys().map(String::as_str).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let message = format!("model '{model}' has no adapter '{name}'; loaded are: {known}");
                Err(ApiError::new(ErrorCode::ModelNotFound, message).with_param("model"))
            }
        }
    }

    /// The name of a model with this adapter, as answers have it; that of the model alone without one.
    pub(crate) fn answering(&self, model: &ModelId, adapter: Option<&Arc<LoadedAdapter>>) -> String {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        let name = adapter.and_then(|adapter| loaded.iter().find(|(_, loaded)| Arc::ptr_eq(loaded, adapter)));
        name.map_or_else(|| model.to_string(), |(name, _)| format!("{model}:{name}"))
    }

    /// Makes an adapter of files, in place of one with this name. Takes as long as reading and checking them does.
    pub(crate) fn load(&self, model: &ModelId, name: &str, files: &AdapterFiles) -> Result<u64, ApiError> {
        let Some(loader) = &self.loader else {
            let message = format!("model '{model}' takes no adapters");
            return Err(ApiError::new(ErrorCode::UnsupportedByModel, message));
        };
        let adapter = loader.load(files).map_err(|error| {
            let message = format!("adapter '{name}' of model '{model}' cannot be used: {error}");
            ApiError::invalid("model", message)
        })?;
        let adapter = adapter.of_files(digest_of(files));
        for warning in adapter.warnings() {
            warn!(%model, adapter = name, "{warning}");
        }
        let bytes = adapter.bytes();
        info!(%model, adapter = name, bytes, "adapter loaded");
        self.loaded.write().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), Arc::new(adapter));
        Ok(bytes)
    }

    /// Forgets an adapter; whether there was one. Sequences that use it end with it.
    pub(crate) fn unload(&self, name: &str) -> bool {
        self.loaded.write().unwrap_or_else(PoisonError::into_inner).remove(name).is_some()
    }

    /// Names and bytes, in order.
    pub(crate) fn list(&self) -> Vec<(String, u64)> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.iter().map(|(name, adapter)| (name.clone(), adapter.bytes())).collect()
    }

    /// Bytes of all.
    pub(crate) fn bytes(&self) -> u64 {
        self.list().iter().map(|(_, bytes)| bytes).sum()
    }
}

/// A digest of an adapter's files, by which prefixes that were computed with it are found in a later process.
fn digest_of(files: &AdapterFiles) -> u64 {
    match files {
        AdapterFiles::Peft { config, weights } => xxh3_64_with_seed(weights, xxh3_64_with_seed(config, 1)),
        AdapterFiles::Gguf(file) => xxh3_64_with_seed(file, 0),
    }
}
