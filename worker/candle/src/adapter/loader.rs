//! Makes adapters for one decoder, of files in memory.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use model_boss_engine::{AdapterError, AdapterFiles, AdapterLoader, LoadedAdapter};

use super::built::AdaptedModel;
use super::modules::ModuleTable;
use super::parts::{AdapterPart, DecoderAdapter, PartTensors};
use super::peft_config::PeftConfig;
use super::stored::StoredAdapter;
use super::{gguf_adapter, peft_folder};
use crate::files::ModelFiles;
use crate::spec::DecoderSpec;

/// The loader of one decoder's adapters.
pub(crate) struct DecoderAdapterLoader {
    /// The decoder's number.
    pub(crate) of: u64,
    spec: DecoderSpec,
    files: ModelFiles,
    /// Bytes of an element on the devices.
    width: usize,
    modules: OnceLock<ModuleTable>,
}

impl DecoderAdapterLoader {
    pub(crate) fn new(spec: DecoderSpec, files: ModelFiles, width: usize) -> Self {
        static DECODERS: AtomicU64 = AtomicU64::new(1);
        Self { of: DECODERS.fetch_add(1, Ordering::Relaxed), spec, files, width, modules: OnceLock::new() }
    }

    fn modules(&self) -> &ModuleTable {
        self.modules.get_or_init(|| ModuleTable::of(&self.spec))
    }

    /// Checks that a module that is adapted in one layer is in all layers that the configuration means.
    fn is_complete(&self, adapter: &StoredAdapter, config: &PeftConfig) -> Result<(), AdapterError> {
        let mut seen = HashSet::new();
        // Each expert by itself may have been left out.
        for module in adapter.modules.keys().filter(|module| !module.contains(".experts.")) {
            let part = module.split_once("layers.").and_then(|(_, rest)| rest.split_once('.'));
            if !part.is_some_and(|(_, part)| seen.insert(part)) {
                continue;
            }
            let all = self.modules().in_all_layers(module);
            if let Some(missing) = all.iter().find(|name| config.rule.has(name) && !adapter.modules.contains_key(*name))
            {
                let name = format!("base_model.model.{missing}.lora_A.weight");
                let what = "is missing, and 'target_modules' means the module".to_owned();
                return Err(AdapterError::Tensor { name, what });
            }
        }
        Ok(())
    }
}

impl AdapterLoader for DecoderAdapterLoader {
    fn load(&self, files: &AdapterFiles) -> Result<LoadedAdapter, AdapterError> {
        let (stored, config) = match files {
            AdapterFiles::Peft { config, weights } => {
                let (stored, config) = peft_folder::read(config, weights)?;
                (stored, Some(config))
            }
            AdapterFiles::Gguf(file) => (gguf_adapter::read(file)?, None),
        };
        let model = AdaptedModel { spec: &self.spec, files: &self.files, modules: self.modules() };
        let named = |error: AdapterError| match (error, config.as_ref().and_then(|config| config.base.as_deref())) {
            (AdapterError::OtherBase(what), Some(base)) => {
                AdapterError::OtherBase(format!("{what} (adapter_config.json names the base '{base}')"))
            }
            (error, _) => error,
        };
        let parts = model.parts(&stored).map_err(named)?;
        if let Some(config) = &config {
            self.is_complete(&stored, config)?;
        }
        let elements: usize = parts.values().map(PartTensors::elements).sum();
        let parts = parts.into_iter().map(|(path, tensors)| (path, AdapterPart::new(tensors))).collect();
        let contents = Arc::new(DecoderAdapter { of: self.of, parts });
        Ok(LoadedAdapter::new(contents, (elements * self.width) as u64, stored.warnings))
    }
}
