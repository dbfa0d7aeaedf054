//! The content of a bundle: files of this machine, and the views of a coordinator if one answers.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use model_boss_client::{Client, ClientError, in_path};
use model_boss_config::{Config, Loaded};
use model_boss_host::plain_file::read_plain_file;
use model_boss_protocol::chain;
use serde_json::Value;
use tokio::time::timeout;

use super::archive::BundleFile;
use super::redaction::Redaction;
use crate::tables::pretty;

/// How long one view is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most logs of models, newest first.
const MOST_LOGS: usize = 12;
/// The most manifests.
const MOST_MANIFESTS: usize = 300;
/// The longest file of settings.
const LONGEST: u64 = 1 << 20;
/// The most bytes at the end of a log.
const LOG_END: u64 = 8 << 20;
/// The longest line of a log: longer ones hardly are messages.
const LONGEST_LINE: usize = 600;
/// The coordinator's views, each with its name in the bundle.
const VIEWS: [(&str, &str); 11] = [
    ("health", "/api/v1/health"),
    ("stats", "/api/v1/stats"),
    ("devices", "/api/v1/devices"),
    ("slots", "/api/v1/slots"),
    ("queue", "/api/v1/queue"),
    ("decisions", "/api/v1/decisions"),
    ("leases", "/api/v1/leases"),
    ("providers", "/api/v1/providers"),
    ("tasks", "/api/v1/tasks"),
    ("settings_at_run_time", "/api/v1/config?origin=1"),
    ("models", "/v1/models"),
];

/// Collects files of a bundle, without secrets.
pub(super) struct BundleContent<'a> {
    pub(super) redaction: &'a Redaction,
    pub(super) lines: usize,
    pub(super) files: Vec<BundleFile>,
}

impl BundleContent<'_> {
    /// Adds a text.
    pub(super) fn text(&mut self, name: &str, text: &str) {
        self.files.push(BundleFile { name: name.to_owned(), content: self.redaction.text(text) });
    }

    /// Adds a text whose lines may quote a worker.
    pub(super) fn report(&mut self, name: &str, text: &str) {
        self.files.push(BundleFile { name: name.to_owned(), content: self.redaction.log(text) });
    }

    /// Adds JSON.
    pub(super) fn json(&mut self, name: &str, value: &Value) {
        self.files.push(BundleFile { name: name.to_owned(), content: pretty(&self.redaction.json(value)) });
    }

    fn log(&mut self, name: &str, log: &str) {
        let lines: Vec<&str> = log.lines().collect();
        let begin = lines.len().saturating_sub(self.lines);
        let last: String = lines.iter().skip(begin).map(|line| format!("{}\n", cut(line))).collect();
        self.files.push(BundleFile { name: name.to_owned(), content: self.redaction.log(&last) });
    }

    /// The settings with their sources, manifests and tasks.
    pub(super) fn settings(&mut self, loaded: &Loaded, problems: &[String]) {
        let mut text: String = problems.iter().map(|problem| format!("# problem: {problem}\n")).collect();
        let shown = loaded.show();
        text.extend(
            shown.iter().map(|setting| format!("{} = {}  # {}\n", setting.path, setting.value, setting.origin)),
        );
        self.files.push(BundleFile { name: "configuration.toml".to_owned(), content: self.redaction.settings(&text) });
        let config = &loaded.config;
        self.file("tasks.yaml", &config.tasks);
        let folder = config.manifests_folder();
        let mut manifests: Vec<_> = fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .map(|path| if path.is_dir() { path.join("model.toml") } else { path })
            .filter(|path| path.extension().is_some_and(|ending| ending == "toml") && path.is_file())
            .collect();
        manifests.sort();
        for path in manifests.iter().take(MOST_MANIFESTS) {
            let relative = path.strip_prefix(&folder).unwrap_or(path);
            self.file(&format!("manifests/{}", plain(&relative.to_string_lossy())), path);
        }
    }

    /// A file of settings, if it is there.
    fn file(&mut self, name: &str, path: &Path) {
        let content = match read_plain_file(path, LONGEST) {
            Ok(bytes) => self.redaction.settings(&String::from_utf8_lossy(&bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => format!("cannot be read: {error}\n"),
        };
        self.files.push(BundleFile { name: name.to_owned(), content });
    }

    /// The last lines of the workers' logs, which the state folder keeps.
    pub(super) fn worker_logs(&mut self, config: &Config) {
        let folder = config.own_state_dir().join("logs");
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut logs: Vec<(SystemTime, std::path::PathBuf)> = entries
            .filter(|path| path.extension().is_some_and(|ending| ending == "log"))
            .filter_map(|path| Some((path.metadata().and_then(|about| about.modified()).ok()?, path)))
            .collect();
        logs.sort_by_key(|(written, _)| std::cmp::Reverse(*written));
        for (_, path) in logs.iter().take(MOST_LOGS) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.log_file(&format!("logs/workers/{}", plain(&name)), path);
        }
    }

    /// The last lines of a log's file.
    pub(super) fn log_file(&mut self, name: &str, path: &Path) {
        match end_of(path) {
            Ok(text) => self.log(name, &text),
            Err(error) => self.text(name, &format!("{} cannot be read: {error}\n", path.display())),
        }
    }

    /// The last lines that systemd has of the coordinator's service.
    pub(super) async fn journal(&mut self) -> bool {
        let lines = self.lines.to_string();
        let line = ["--unit=model-boss", "--no-pager", "--quiet", "--output=short-iso", "--lines", &lines];
        let mut command = tokio::process::Command::new("journalctl");
        command.args(line).stdin(std::process::Stdio::null()).kill_on_drop(true);
        let Ok(Ok(output)) = timeout(PATIENCE, command.output()).await else { return false };
        let text = String::from_utf8_lossy(&output.stdout);
        let has_lines = output.status.success() && !text.trim().is_empty();
        if has_lines {
            self.log("logs/coordinator.log", &text);
        }
        has_lines
    }

    /// The views of a coordinator. Returns why there are none.
    pub(super) async fn coordinator(&mut self, client: &Client) -> Result<(), String> {
        for (name, path) in VIEWS {
            match timeout(PATIENCE, client.get(path)).await {
                Ok(Ok(view)) => self.json(&format!("coordinator/{name}.json"), &view),
                Ok(Err(error @ ClientError::NoCoordinator(..))) => return Err(chain(&error)),
                Ok(Err(error)) => self.text(&format!("coordinator/{name}.txt"), &format!("{}\n", chain(&error))),
                Err(_) => return Err(format!("{} has not answered {path} for {} s", client.url(), PATIENCE.as_secs())),
            }
        }
        match timeout(PATIENCE, whole(client, "/metrics")).await {
            Ok(Ok(metrics)) => self.text("coordinator/metrics.txt", &metrics),
            Ok(Err(error)) => self.text("coordinator/metrics.txt", &format!("{}\n", chain(&error))),
            Err(_) => {}
        }
        self.logs_of_slots(client).await;
        Ok(())
    }

    /// The logs of loaded models as the coordinator has them: its state folder may be another user's.
    async fn logs_of_slots(&mut self, client: &Client) {
        let Ok(Ok(slots)) = timeout(PATIENCE, client.get("/api/v1/slots")).await else { return };
        let models = slots["slots"].as_array().into_iter().flatten();
        let models: Vec<String> = models.filter_map(|slot| slot["model"].as_str().map(str::to_owned)).collect();
        for model in models {
            let path = format!("/api/v1/logs/{}?lines={}", in_path(&model), self.lines);
            if let Ok(Ok(log)) = timeout(PATIENCE, whole(client, &path)).await {
                self.log(&format!("coordinator/logs/{}.log", plain(&model)), &log);
            }
        }
    }
}

async fn whole(client: &Client, path: &str) -> Result<String, ClientError> {
    let (mut pieces, mut bytes) = (client.read(path).await?, Vec::new());
    while let Some(piece) = pieces.next().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The end of a log, from a whole line on.
fn end_of(path: &Path) -> std::io::Result<String> {
    use std::io::{Read, Seek, SeekFrom};

    let mut file = model_boss_host::plain_file::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_END)))?;
    let mut bytes = Vec::new();
    file.take(LOG_END).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn cut(line: &str) -> String {
    if line.chars().count() <= LONGEST_LINE {
        return line.to_owned();
    }
    line.chars().take(LONGEST_LINE).collect::<String>() + " […]"
}

/// A name as a path inside of a bundle.
fn plain(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-+@%/".contains(c);
    let name: String = name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    name.split('/').filter(|part| !part.is_empty() && *part != "..").collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_1_a_name_in_a_bundle_stays_below_its_folder() {
        assert_eq!(plain("/../a b/../c:1.toml"), "a_b/c_1.toml");
        assert!(cut(&"x".repeat(LONGEST_LINE + 1)).ends_with("[…]"));
    }
}
