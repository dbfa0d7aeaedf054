//! A start line made from the command line, for a worker that is run by hand.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use model_boss_protocol::{
    ByteCount, DeviceId, DraftSpec, Generation, Manifest, ManifestError, Source, SpawnToken, TextLimits, WorkerSpec,
};

use crate::args::Serve;

/// Sequences at once where neither command line nor manifest sets it.
const MAX_CONCURRENT: u32 = 8;

/// The reason why the model of a command line cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ByHandError {
    /// No such file.
    #[error("{path} cannot be read")]
    Read { path: PathBuf, source: io::Error },
    /// Not a manifest.
    #[error("{path} is not a manifest")]
    Parse { path: PathBuf, source: toml::de::Error },
    /// Several devices, and not the memory of each.
    #[error("{devices} devices and {given} sizes of memory: --memory takes one size for all devices, or one for each")]
    Memory { devices: usize, given: usize },
    /// A manifest whose files are not at a path.
    #[error("{path} names a repository of a hub; give the path of its files, which `model-boss show` has as source")]
    OfHub { path: PathBuf },
    /// A manifest that contradicts itself.
    #[error("{path} is not a manifest")]
    Check { path: PathBuf, source: ManifestError },
}

/// The start line that the coordinator would have written.
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
    let draft = match (&manifest_path, manifest.as_ref().and_then(|manifest| manifest.draft.as_ref())) {
        (Some(_), Some(Source { path: Some(path), .. })) => {
            Some(DraftSpec { source: folder.join(path), bytes: ByteCount::ZERO })
        }
        (Some(path), Some(_)) => return Err(ByHandError::OfHub { path: path.clone() }),
        _ => None,
    };
    let source = match (&manifest_path, manifest.as_ref().and_then(|manifest| manifest.source.as_ref())) {
        (Some(_), Some(Source { path: Some(path), .. })) => folder.join(path),
        // The coordinator knows the cache of hubs.
        (Some(path), Some(_)) => return Err(ByHandError::OfHub { path: path.clone() }),
        (Some(_), None) => folder,
        (None, _) => model,
    };
    let manifest = manifest.unwrap_or_else(|| Manifest { name, ..Manifest::default() });
    let (device, parts) = leased(serve, &manifest)?;
    Ok(WorkerSpec {
        model: manifest.name.as_str().into(),
        category: manifest.category(),
        source,
        device,
        parts,
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
        text: TextLimits::default(),
        cpu_features: None,
        threads: None,
        speculation: manifest.speculation.unwrap_or_default(),
        draft,
        speech: manifest.speech,
        voices: manifest.voices,
        sandbox: serve.sandbox,
        parking: None,
    })
}

/// The first device, and as if this much had been leased.
fn leased(serve: &Serve, manifest: &Manifest) -> Result<(DeviceId, Vec<(DeviceId, ByteCount)>), ByHandError> {
    let named = if serve.device.is_empty() { vec![manifest.device.clone()] } else { serve.device.clone() };
    let devices: Vec<DeviceId> =
        named.into_iter().map(|device| if device == DeviceId::Auto { DeviceId::Cpu } else { device }).collect();
    let memory = &serve.layers.memory;
    let mut parts: Vec<(DeviceId, ByteCount)> = match (devices.len(), memory.as_slice()) {
        (1, []) => Vec::new(),
        (_, [of_each]) => devices.iter().map(|device| (device.clone(), *of_each)).collect(),
        (count, of_each) if of_each.len() == count => devices.iter().cloned().zip(of_each.iter().copied()).collect(),
        (count, of_each) => return Err(ByHandError::Memory { devices: count, given: of_each.len() }),
    };
    let device = devices.into_iter().next().unwrap_or(DeviceId::Cpu);
    if device != DeviceId::Cpu {
        parts.extend(serve.layers.host_memory.map(|bytes| (DeviceId::Cpu, bytes)));
    }
    Ok((device, parts))
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::command_line::{CommandLine, WorkerCommand};

    fn parts(line: &str) -> Result<(DeviceId, Vec<(DeviceId, ByteCount)>), ByHandError> {
        let words = ["model-boss-worker", "serve", "m.gguf"].into_iter().chain(line.split_whitespace());
        let WorkerCommand::Serve(serve) = CommandLine::try_parse_from(words).unwrap().command else { unreachable!() };
        leased(&serve, &Manifest { name: "m".to_owned(), ..Manifest::default() })
    }

    #[test]
    fn several_devices_have_memory_each_or_the_same() {
        let (gib, gpu) = (ByteCount::gib, DeviceId::Cuda);
        assert_eq!(parts("").unwrap(), (DeviceId::Cpu, Vec::new()));
        assert_eq!(parts("--device cuda:1 --memory 2GiB").unwrap(), (gpu(1), vec![(gpu(1), gib(2))]));
        let two = parts("--device cuda:0,cuda:2 --memory 8GiB,4GiB --host-memory 1GiB").unwrap();
        assert_eq!(two, (gpu(0), vec![(gpu(0), gib(8)), (gpu(2), gib(4)), (DeviceId::Cpu, gib(1))]));
        let same = parts("--device cpu,cpu --memory 1GiB --host-memory 1GiB").unwrap();
        assert_eq!(same, (DeviceId::Cpu, vec![(DeviceId::Cpu, gib(1)); 2]));
        for wrong in ["--device cuda:0,cuda:1", "--device cuda:0,cuda:1,cuda:2 --memory 1GiB,2GiB"] {
            assert!(parts(wrong).unwrap_err().to_string().contains("--memory takes"), "{wrong}");
        }
    }
}
