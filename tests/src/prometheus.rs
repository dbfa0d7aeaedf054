//! A real Prometheus in a folder of its own, which scrapes a coordinator and evaluates rules.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::client::Client;
use crate::ports::own_ports;
use crate::wait::{PATIENCE, until};

/// The variable with the folder of the programs `prometheus` and `promtool`, where they are not on PATH.
const FOLDER_VARIABLE: &str = "MODEL_BOSS_PROMETHEUS";

/// A server, which ends with this value.
pub struct Prometheus {
    process: Child,
    client: Client,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts a server that scrapes `target` every second and evaluates these rules as often. Returns `None`, and
    /// prints the reason, where none is installed.
    pub async fn start(target: &str, rules: &Path) -> Option<Self> {
        let program = program("prometheus")?;
        let folder = tempfile::Builder::new().prefix("model-boss-prometheus-").tempdir().unwrap();
        let config = folder.path().join("prometheus.yml");
        let text = format!(
            "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nrule_files: ['{}']\nscrape_configs:\n  \
             - job_name: model-boss\n    static_configs:\n      - targets: ['{target}']\n",
            rules.display()
        );
        std::fs::write(&config, text).unwrap();
        let checked = promtool(&["check", "config", &config.display().to_string()], "").unwrap();
        assert!(checked.status.success(), "{checked:?}");
        let port = *own_ports().start();
        let mut command = Command::new(program);
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let process = command.spawn().unwrap();
        let server = Self { process, client: Client::new(([127, 0, 0, 1], port).into()), _folder: folder };
        let ready = async || (server.client.listens().await && server.is_ready().await).then_some(());
        until(PATIENCE, "prometheus is ready", ready).await;
        Some(server)
    }

    async fn is_ready(&self) -> bool {
        self.client.get("/-/ready").await.status.is_success()
    }

    /// The result of an expression now, or Prometheus' message about it.
    pub async fn query(&self, expression: &str) -> Result<Vec<Value>, String> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = self.client.get(&format!("/api/v1/query?query={encoded}")).await.json();
        match answer["status"].as_str() {
            Some("success") => Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default()),
            _ => Err(answer["error"].to_string()),
        }
    }

    /// Every rule with its state.
    pub async fn rules(&self) -> Vec<Value> {
        let answer = self.client.get("/api/v1/rules").await.json();
        let groups = answer["data"]["groups"].as_array().cloned().unwrap_or_default();
        groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// Runs `promtool` with this text as its input; `None` where it is not installed.
pub fn promtool(arguments: &[&str], input: &str) -> Option<Output> {
    let mut command = Command::new(program("promtool")?);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    Some(child.wait_with_output().unwrap())
}

fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os(FOLDER_VARIABLE).or_else(|| std::env::var_os("PATH"))?;
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    if found.is_none() {
        eprintln!("skipped: there is no {name} on PATH, and {FOLDER_VARIABLE} names no folder with it");
    }
    found
}
