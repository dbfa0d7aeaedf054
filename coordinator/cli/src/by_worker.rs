//! Commands that the worker executes alone with a model's files. They find the files of a name, and run the worker's
//! program, without a coordinator and without a lease.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use model_boss_catalog::{Catalog, ManifestFolders};
use model_boss_client::Client;
use model_boss_config::Config;
use model_boss_host::programs::Programs;
use model_boss_protocol::{Backend, Manifest};

use super::error::CliError;
use super::files;
use super::flags::SettingFlags;

/// A model on this disk, and its manifest.
#[derive(Debug, Default)]
pub(super) struct ModelOnDisk {
    pub(super) name: String,
    pub(super) source: PathBuf,
    /// The manifest; empty for a path.
    pub(super) manifest: Manifest,
}

/// The worker's program, and the settings that find it.
pub(super) struct ByWorker {
    config: Config,
}

impl ByWorker {
    /// Reads the configuration.
    pub(crate) fn new() -> Result<Self, CliError> {
        Ok(Self { config: SettingFlags::default().sources().load()?.config })
    }

    /// The model of a path, or of a name or alias in the folder of manifests.
    pub(super) async fn find(&self, client: &Client, model: &str) -> Result<ModelOnDisk, CliError> {
        match files::meant(client, model).await? {
            Some(path) => Ok(of_path(path)),
            None => of_name(model, ManifestFolders::of(&self.config)),
        }
    }

    /// Runs the worker with this command line; it writes to the terminal itself. Its exit code is passed on; a worker
    /// ended by a signal gives 1.
    pub(super) fn run<S: AsRef<OsStr>>(&self, line: impl IntoIterator<Item = S>) -> Result<ExitCode, CliError> {
        let programs = Programs::find(self.config.worker_binary.as_deref())?;
        let worker = programs.of(Backend::Candle)?;
        let status = Command::new(worker).args(line).status();
        let status = status.map_err(|error| CliError::Worker(worker.clone(), error))?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
    }
}

fn of_path(source: PathBuf) -> ModelOnDisk {
    let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    ModelOnDisk { name, source, manifest: Manifest::default() }
}

fn of_name(name: &str, folders: ManifestFolders) -> Result<ModelOnDisk, CliError> {
    let catalog = Catalog::read(folders.clone());
    let model = catalog.find(name).ok_or_else(|| CliError::NoSuchModel(name.to_owned(), folders.own))?;
    let manifest = model.manifest.clone();
    Ok(ModelOnDisk { name: manifest.name.clone(), source: model.source.clone(), manifest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_manifest_has_is_told_with_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("m.toml"), "name = \"m\"\nsource = { path = \"w.gguf\" }\n").unwrap();
        assert_eq!(of_name("m", folder.path().into()).unwrap().source, folder.path().join("w.gguf"));
        let error = of_name("n", folder.path().into()).unwrap_err().to_string();
        assert!(error.contains("'n'") && error.contains(folder.path().to_str().unwrap()), "{error}");
    }
}
