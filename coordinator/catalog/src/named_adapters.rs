//! Names of adapters: `MODEL:ADAPTER`, and the adapters that are added and removed while the process runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::PoisonError;

use model_boss_core::AdapterName;
use model_boss_protocol::ModelId;

use super::adapters::AdapterSource;
use super::by_path::{self, Asker, PathError};
use super::entries::Catalog;
use super::live::LiveCatalog;

/// Why an adapter cannot be added.
#[derive(Debug, thiserror::Error)]
pub enum AddAdapterError {
    /// The path may not be named, or is not there.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The name is in use.
    #[error("model '{model}' has an adapter '{name}' already; unload it first, or send 'load_inplace': true")]
    Taken {
        /// The model.
        model: ModelId,
        /// The adapter.
        name: String,
    },
    /// The manifest names the adapter.
    #[error("adapter '{0}' is the manifest's; edit its 'adapters'")]
    OfManifest(String),
    /// There is no such adapter.
    #[error("model '{model}' has no adapter '{name}' that was loaded by a request")]
    Absent {
        /// The model.
        model: ModelId,
        /// The adapter.
        name: String,
    },
}

impl LiveCatalog {
    /// All adapters of a model by their names.
    pub fn adapters(&self, model: &ModelId) -> BTreeMap<String, AdapterSource> {
        self.adapters_in(&self.current(), model)
    }

    fn adapters_in(&self, catalog: &Catalog, model: &ModelId) -> BTreeMap<String, AdapterSource> {
        let added = self.added.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = added.get(model).cloned().unwrap_or_default();
        let of_manifest = catalog.get(model).map(|model| model.adapters.clone());
        all.extend(of_manifest.unwrap_or_default());
        all
    }

    /// The meaning of a name that is no model's: `MODEL:ADAPTER`, or the name alone of an adapter that was added, if
    /// only one model has it.
    pub fn adapter_named(&self, name: &str) -> AdapterName {
        let catalog = self.current();
        for (at, _) in name.rmatch_indices(':') {
            let (base, adapter) = (&name[..at], &name[at + 1..]);
            let Some(model) = catalog.find(base) else { continue };
            let (model, adapter) = (model.description.id.clone(), adapter.to_owned());
            let all = self.adapters_in(&catalog, &model);
            return match (all.contains_key(&adapter), all.is_empty()) {
                (true, _) => AdapterName::Known { model, adapter },
                (false, false) => AdapterName::Unknown { model, adapter, known: all.into_keys().collect() },
                (false, true) => AdapterName::Other,
            };
        }
        let added = self.added.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut models = added.iter().filter(|(_, adapters)| adapters.contains_key(name)).map(|(model, _)| model);
        match (models.next(), models.next()) {
            (Some(model), None) if catalog.get(model).is_some() => {
                AdapterName::Known { model: model.clone(), adapter: name.to_owned() }
            }
            _ => AdapterName::Other,
        }
    }

    /// Adds an adapter at a path that the caller may name. Reads its folder, and blocks meanwhile.
    pub fn add_adapter(
        &self,
        model: &ModelId,
        name: &str,
        (path, asker): (&Path, Asker),
        replace: bool,
    ) -> Result<AdapterSource, AddAdapterError> {
        let roots = by_path::roots_for(asker, path, &self.roots);
        let at = by_path::admit(path, &roots)?;
        let source = AdapterSource::below(at.path, roots);
        if self.current().get(model).is_some_and(|known| known.adapters.contains_key(name)) {
            return Err(AddAdapterError::OfManifest(name.to_owned()));
        }
        let mut added = self.added.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_model = added.entry(model.clone()).or_default();
        if of_model.contains_key(name) && !replace {
            return Err(AddAdapterError::Taken { model: model.clone(), name: name.to_owned() });
        }
        of_model.insert(name.to_owned(), source.clone());
        Ok(source)
    }

    /// Forgets an adapter that was added.
    pub fn remove_adapter(&self, model: &ModelId, name: &str) -> Result<(), AddAdapterError> {
        if self.current().get(model).is_some_and(|known| known.adapters.contains_key(name)) {
            return Err(AddAdapterError::OfManifest(name.to_owned()));
        }
        let mut added = self.added.0.lock().unwrap_or_else(PoisonError::into_inner);
        let removed = added.get_mut(model).and_then(|adapters| adapters.remove(name));
        let absent = || AddAdapterError::Absent { model: model.clone(), name: name.to_owned() };
        removed.map(|_| ()).ok_or_else(absent)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::*;
    use crate::{Engines, ModelRoots};

    fn catalog(text: &str) -> (tempfile::TempDir, LiveCatalog) {
        let root = tempfile::tempdir().unwrap();
        for folder in ["manifests", "models/base", "models/style", "outside"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        for (file, content) in [
            ("models/base/config.json", "{}"),
            ("models/style/adapter_config.json", "{}"),
            ("models/style/adapter_model.safetensors", "weights"),
            ("outside/x.gguf", "x"),
            ("models/x.gguf", "gguf"),
        ] {
            fs::write(root.path().join(file), content).unwrap();
        }
        fs::write(root.path().join("manifests/base.toml"), text).unwrap();
        let roots = ModelRoots::new(&[root.path().join("models")]);
        let live = LiveCatalog::read(root.path().join("manifests"), roots, Engines::default(), Box::new(drop));
        (root, live)
    }

    const PLAIN: &str = "name = \"org/base:8b\"\naliases = [\"b\"]\nsource = { path = \"../models/base\" }\n";

    #[test]
    fn en_9_names_lead_to_a_model_and_its_adapter() {
        let (root, live) = catalog(&format!("{PLAIN}[adapters]\nstyle = \"../models/style\"\n"));
        let known = |adapter: &str| AdapterName::Known { model: "org/base:8b".into(), adapter: adapter.to_owned() };
        assert_eq!(live.adapter_named("org/base:8b:style"), known("style"));
        assert_eq!(live.adapter_named("b:style"), known("style"), "by an alias");
        let unknown = AdapterName::Unknown {
            model: "org/base:8b".into(),
            adapter: "other".to_owned(),
            known: vec!["style".to_owned()],
        };
        assert_eq!(live.adapter_named("b:other"), unknown);
        assert_eq!(live.adapter_named("nobody:style"), AdapterName::Other);
        assert_eq!(live.adapter_named("style"), AdapterName::Other, "names alone are those of added ones");
        let path = root.path().join("models/x.gguf");
        let add = |replace| live.add_adapter(&"org/base:8b".into(), "sql", (&path, Asker::Anybody), replace);
        add(false).unwrap();
        assert_eq!(live.adapter_named("sql"), known("sql"));
        assert!(matches!(add(false), Err(AddAdapterError::Taken { .. })));
        add(true).unwrap();
        let outside = root.path().join("outside/x.gguf");
        let error = live.add_adapter(&"org/base:8b".into(), "o", (&outside, Asker::Anybody), false).unwrap_err();
        assert!(matches!(error, AddAdapterError::Path(PathError::Outside { .. })));
        live.remove_adapter(&"org/base:8b".into(), "sql").unwrap();
        assert!(matches!(live.remove_adapter(&"org/base:8b".into(), "sql"), Err(AddAdapterError::Absent { .. })));
        assert!(matches!(live.remove_adapter(&"org/base:8b".into(), "style"), Err(AddAdapterError::OfManifest(_))));
    }

    #[test]
    fn en_9_adapters_come_and_go_while_the_model_stays_the_same() {
        let (root, live) = catalog(PLAIN);
        let model = || Arc::clone(live.current().models().next().unwrap());
        let before = model().description.revision;
        let file = root.path().join("manifests/base.toml");
        fs::write(&file, format!("{PLAIN}\n[adapters]\nstyle = \"../models/style\"\n")).unwrap();
        live.read_now();
        assert_eq!((model().description.revision, model().adapters.len()), (before, 1));
        let first = model().adapters["style"].clone();
        let content = first.read().unwrap();
        assert_eq!((content.config.as_deref(), content.weights.as_slice()), (Some(&b"{}"[..]), &b"weights"[..]));
        fs::write(root.path().join("models/style/adapter_model.safetensors"), "other weights").unwrap();
        live.read_now();
        assert!(model().adapters["style"] != first, "other files are another adapter");
        fs::write(&file, PLAIN).unwrap();
        live.read_now();
        assert_eq!((model().description.revision, model().adapters.len()), (before, 0));
    }

    #[test]
    fn en_9_what_is_no_adapter_is_named() {
        let (root, _) = catalog(PLAIN);
        let read = |path: &str| {
            let path = root.path().join(path);
            AdapterSource::below(path, ModelRoots::new(&[root.path().join("models")]))
                .read()
                .map_err(|error| error.to_string())
        };
        assert_eq!(read("models/x.gguf").unwrap().weights, b"gguf");
        assert!(read("models/none").unwrap_err().contains("not there"));
        assert!(read("models/base").unwrap_err().contains("adapter_config.json"));
        fs::rename(
            root.path().join("models/style/adapter_model.safetensors"),
            root.path().join("models/style/adapter_model.bin"),
        )
        .unwrap();
        assert!(read("models/style").unwrap_err().contains("can run code"));
    }
}
