//! A coordinator for one chat: started where none runs, with a port and a state of its own, and ended with the chat.
//! The module starts and ends it, and sends it no requests.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use model_boss_catalog::{ManifestFolders, ModelRoots};
use model_boss_client::Client;
use model_boss_config::DEFAULT_TASKS;
use model_boss_host::guard::die_with_us;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::error::{CliError, OCCUPIED, PrivateError};

/// The longest wait for the coordinator's end. It has no requests left by then, but a worker may hang.
const END_LIMIT: Duration = Duration::from_secs(15);

/// The number of log lines that are shown when the coordinator does not start.
const SHOWN_LINES: usize = 10;

/// The model that a private coordinator serves.
pub(super) enum PrivateModel {
    /// A file or folder.
    Path(PathBuf),
    /// A model of these folders.
    Manifest(ManifestFolders),
}

/// A coordinator that only this process uses.
pub(super) struct Private {
    child: Child,
    client: Client,
    _folder: TempDir,
}

impl Private {
    /// Starts a coordinator that has this model, with the settings that `serve` would have here. `None` if `stop`
    /// completes first.
    pub(crate) async fn start<T>(
        model: &PrivateModel,
        stop: impl Future<Output = T>,
    ) -> Result<Option<Self>, CliError> {
        let folder = tempfile::Builder::new().prefix("model-boss-run-").tempdir().map_err(PrivateError::Folder)?;
        let (manifests, log) = (folder.path().join("manifests"), folder.path().join("log"));
        std::fs::create_dir(&manifests).map_err(PrivateError::Folder)?;
        // Tasks and clients configured here are about other models, and about callers over the network.
        let tasks = folder.path().join(DEFAULT_TASKS);
        std::fs::write(&tasks, "tasks: {}\n").map_err(PrivateError::Folder)?;
        let mut child = {
            let log = File::create(&log).map_err(PrivateError::Folder)?;
            let mut command = Command::new(std::env::current_exe().map_err(PrivateError::Spawn)?);
            command.args(["serve", "--host", "127.0.0.1", "--port", "0", "--log-level", "warn"]);
            // The model stays loaded for as long as the chat lasts.
            command.args(["--model-idle-secs", "0"]);
            match model {
                PrivateModel::Path(path) => {
                    command.arg("--model-roots").arg(list(ModelRoots::around(path).folders())?);
                    command.arg("--manifests").arg(manifests)
                }
                PrivateModel::Manifest(folders) => {
                    let installed = folders
                        .installed
                        .iter()
                        .flat_map(|folder| [OsStr::new("--installed-models"), folder.as_os_str()]);
                    command.arg("--manifests").arg(&folders.own).args(installed)
                }
            };
            command.arg("--tasks").arg(tasks).arg("--state-dir").arg(folder.path().join("state"));
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
            die_with_us(command.as_std_mut());
            command.spawn().map_err(PrivateError::Spawn)?
        };
        let url = tokio::select! {
            url = url_of(&mut child) => url.map_err(PrivateError::Spawn)?,
            // Dropping the child kills it.
            _ = stop => return Ok(None),
        };
        let Some(url) = url else {
            // The coordinator closed its output, so it is about to end.
            let status = timeout(END_LIMIT, child.wait()).await;
            let code = status.ok().and_then(Result::ok).and_then(|status| status.code());
            return Err(ended(&log, code).into());
        };
        let client = Client::new(&url, std::env::var("MODEL_BOSS_API_KEY").ok())?;
        Ok(Some(Self { child, client, _folder: folder }))
    }

    /// A client of the coordinator's API.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Ends the coordinator and waits until it is gone; kills it if `stop` completes first.
    pub(super) async fn end<T>(mut self, stop: impl Future<Output = T>) {
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            // A process that has ended already needs no signal.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let gone = tokio::select! {
            waited = timeout(END_LIMIT, self.child.wait()) => waited.is_ok(),
            _ = stop => false,
        };
        if !gone {
            // The coordinator's workers die with it.
            let _ = self.child.kill().await;
        }
    }
}

/// The coordinator's URL, from its first line; `None` if it ends before.
async fn url_of(child: &mut Child) -> io::Result<Option<String>> {
    let Some(output) = child.stdout.take() else { return Ok(None) };
    let mut lines = BufReader::new(output).lines();
    while let Some(line) = lines.next_line().await? {
        if let Some((_, url)) = line.split_once("listens on ") {
            return Ok(Some(url.trim().to_owned()));
        }
    }
    Ok(None)
}

/// Folders as a list in the setting's syntax, with any characters in their names.
fn list(folders: &[PathBuf]) -> Result<String, CliError> {
    let quoted = |folder: &PathBuf| {
        let text = folder.to_str().ok_or_else(|| CliError::NotText(folder.clone()))?;
        Ok(toml::Value::from(text).to_string())
    };
    let quoted: Vec<String> = folders.iter().map(quoted).collect::<Result<_, CliError>>()?;
    Ok(format!("[{}]", quoted.join(", ")))
}

fn ended(log: &Path, exit_code: Option<i32>) -> PrivateError {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let said = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
    let is_occupied = exit_code == Some(i32::from(OCCUPIED));
    let hint = if is_occupied { "; or name the one that runs: --url http://127.0.0.1:PORT" } else { "" };
    PrivateError::Ended { said: said.strip_prefix("model-boss: ").unwrap_or(&said).to_owned(), hint }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn folders_are_listed_as_the_setting_takes_them() {
        let text = list(&["/a, b".into(), "/c\"d]".into()]).unwrap();
        let read: toml::Value = text.parse().unwrap();
        assert_eq!(read, toml::Value::from(vec!["/a, b", "/c\"d]"]));
    }

    #[test]
    fn what_a_coordinator_said_last_is_told_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        fs::write(&log, "model-boss: device cpu is in use by process 7 (state folder /s); stop it\n").unwrap();
        let error = ended(&log, Some(75)).to_string();
        assert!(error.ends_with("stop it; or name the one that runs: --url http://127.0.0.1:PORT"), "{error}");
        assert!(error.contains("does not start: device cpu is in use"), "{error}");
        let error = ended(&log, Some(1)).to_string();
        assert!(error.ends_with("stop it"), "{error}");
    }
}
