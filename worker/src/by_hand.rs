//! A start line made from the command line, for a worker that is run by hand.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use model_boss_protocol::{DeviceId, Generation, Manifest, ManifestError, SpawnToken, WorkerSpec};

use crate::args::Serve;

/// Sequences at once where nobody said.
const MAX_CONCURRENT: u32 = 8;

/// The command line names nothing that can be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ByHandError {
    /// No such file.
    #[error("{path} cannot be read")]
    Read { path: PathBuf, source: io::Error },
    /// Not a manifest.
    #[error("{path} is not a manifest")]
    Parse { path: PathBuf, source: toml::de::Error },
    /// A manifest that contradicts itself.
    #[error("{path} is not a manifest")]
    Check { path: PathBuf, source: ManifestError },
}

/// What the coordinator would have written.
pub(crate) fn spec(serve: &Serve, model: &Path) -> Result<WorkerSpec, ByHandError> {
    let model = fs::canonicalize(model).map_err(|source| ByHandError::Read { path: model.to_owned(), source })?;
    let package = model.join("model.toml");
    let manifest_path = match model.extension() {
        Some(extension) if extension == "toml" => Some(model.clone()),
        _ if package.is_file() => Some(package),
        _ => None,
    };
    let folder = manifest_path.as_deref().unwrap_or(&model).parent().unwrap_or(&model).to_owned();
    let manifest = match &manifest_path {
        Some(path) => read_manifest(path)?,
        None => None,
    };
    let name = model.file_stem().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned());
    let source = match (&manifest_path, manifest.as_ref().and_then(|manifest| manifest.source.as_ref())) {
        (Some(_), Some(source)) => folder.join(&source.path),
        (Some(_), None) => folder,
        (None, _) => model,
    };
    let manifest = manifest.unwrap_or_else(|| Manifest { name, ..Manifest::default() });
    let device = match serve.device.clone().unwrap_or(manifest.device.clone()) {
        DeviceId::Auto => DeviceId::Cpu,
        device => device,
    };
    Ok(WorkerSpec {
        model: manifest.name.as_str().into(),
        category: manifest.category(),
        source,
        device: device.clone(),
        // As if this much had been leased.
        parts: serve.layers.memory.map(|memory| (device.clone(), memory)).into_iter().collect(),
        port: serve.port,
        generation: Generation(0),
        token: SpawnToken::from_bits(0),
        proof: SpawnToken::from_bits(0),
        context_length: serve.context_length.or(manifest.context_length),
        max_concurrent: serve.max_concurrent.or(manifest.max_concurrent).unwrap_or(MAX_CONCURRENT),
        residency: serve.layers.over(manifest.residency()),
        params: manifest.params,
        chat_template: manifest.chat_template,
        thinking: manifest.thinking,
        settings: BTreeMap::new(),
    })
}

fn read_manifest(path: &Path) -> Result<Option<Manifest>, ByHandError> {
    let text = fs::read_to_string(path).map_err(|source| ByHandError::Read { path: path.to_owned(), source })?;
    let mut manifest: Manifest =
        toml::from_str(&text).map_err(|source| ByHandError::Parse { path: path.to_owned(), source })?;
    if manifest.name.is_empty() {
        // A package may go by its folder's name.
        let folder = path.parent().and_then(Path::file_stem);
        manifest.name = folder.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned());
    }
    manifest.check().map_err(|source| ByHandError::Check { path: path.to_owned(), source })?;
    Ok(Some(manifest))
}
