//! Commands that the worker executes alone with a model's files. They find the files of a name, and run the worker's
//! program, without a coordinator and without a lease.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use model_boss_catalog::{Catalog, ManifestFolders};
use model_boss_client::Client;
use model_boss_config::Config;
use model_boss_host::programs::Programs;
use model_boss_host::terminal;
use model_boss_protocol::{Backend, FileProgress, Manifest};

use super::error::CliError;
use super::files;
use super::flags::SettingFlags;
use super::progress_line::{ProgressLine, ProgressUnit, ShownProgress};

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

    /// Runs the worker with this command line, and shows the progress of the file that it writes. Its other lines are
    /// passed on, and so is its exit code.
    pub(super) fn run_long<S: AsRef<OsStr>>(
        &self,
        stage: &str,
        line: impl IntoIterator<Item = S>,
    ) -> Result<ExitCode, CliError> {
        let programs = Programs::find(self.config.worker_binary.as_deref())?;
        let worker = programs.of(Backend::Candle)?;
        let failed = |error| CliError::Worker(worker.clone(), error);
        let mut command = Command::new(worker);
        command.args(line).env(FileProgress::VARIABLE, "1").stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let (mut shown, began) = (ProgressLine::new(), Instant::now());
        let lines = child.stderr.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
        for text in lines.map_while(Result::ok) {
            match FileProgress::of_line(&text) {
                Some(progress) => {
                    let shown_progress = of_file(stage, progress, shown.is_terminal(), began);
                    shown.show(&shown_progress).map_err(CliError::Output)?;
                }
                None => {
                    shown.end().map_err(CliError::Output)?;
                    terminal::say(&text);
                }
            }
        }
        shown.end().map_err(CliError::Output)?;
        let code = child.wait().map_err(failed)?.code().and_then(|code| u8::try_from(code).ok());
        Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
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

/// The progress of a file. Its part changes often, so only a terminal shows it.
fn of_file(stage: &str, progress: FileProgress, is_terminal: bool, began: Instant) -> ShownProgress {
    ShownProgress {
        stage: stage.to_owned(),
        file: if is_terminal { progress.part } else { String::new() },
        total: progress.total,
        completed: progress.completed,
        rate: progress.completed as f64 / began.elapsed().as_secs_f64().max(0.001),
        trouble: None,
        at: Instant::now(),
        unit: ProgressUnit::Bytes,
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
