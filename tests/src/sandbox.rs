//! A temporary folder for one coordinator: manifests, state, configuration, fake models. The sandbox starts
//! coordinators in its folder.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use crate::binaries::binary;
use crate::boss::{Boss, Launch};
use crate::ports::own_ports;
use crate::processes::MARK_VARIABLE;

/// A temporary folder with everything that a coordinator needs. It is removed when this value and its coordinators are
/// gone.
pub struct Sandbox {
    folder: Arc<TempDir>,
    config: String,
    ports: RangeInclusive<u16>,
    mark: String,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self::new()
    }
}

/// The number of sandboxes of this process, for their names.
static SANDBOXES: AtomicU32 = AtomicU32::new(0);

impl Sandbox {
    /// A sandbox without models and settings.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("model-boss-test-").tempdir().unwrap();
        for name in ["manifests", "models", "run", "state"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let number = SANDBOXES.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}-{number}", std::process::id());
        Self { folder: Arc::new(folder), config: String::new(), ports: own_ports(), mark }
    }

    /// Adds lines to `model-boss.toml`.
    #[must_use]
    pub fn with_config(mut self, lines: &str) -> Self {
        self.config = format!("{}{lines}\n", self.config);
        self
    }

    /// Sets the range of workers' ports.
    #[must_use]
    pub fn with_worker_ports(mut self, ports: RangeInclusive<u16>) -> Self {
        self.ports = ports;
        self
    }

    /// Simulates this machine instead of using the real one; returns the file, which may be edited later.
    pub fn simulate(&mut self, machine: &str) -> PathBuf {
        let file = self.path("gpus.toml");
        std::fs::write(&file, machine).unwrap();
        self.config = format!("{}simulate = \"gpus.toml\"\n", self.config);
        file
    }

    /// Adds a llama-server, which is the fake worker in that role, and configures its path.
    pub fn llama_server(&mut self) -> PathBuf {
        let program = self.fake_engine();
        self.config = format!("{}llama_server = \"{}\"\n", self.config, program.display());
        program
    }

    /// A fake program that behaves as llama-server does.
    pub fn fake_engine(&self) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;

        let (program, fake) = (self.path("llama-server"), binary("model-boss-fake-worker"));
        let script = format!("#!/bin/sh\nexec '{}' llama-server \"$@\"\n", fake.display());
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        program
    }

    /// Adds a model whose files are at `source`, with these further lines in its manifest.
    pub fn model(&self, name: &str, source: &Path, manifest: &str) {
        let text = format!("name = \"{name}\"\nsource = {{ path = \"{}\" }}\n{manifest}\n", source.display());
        std::fs::write(self.path("manifests").join(format!("{name}.toml")), text).unwrap();
    }

    /// A path inside the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a coordinator with fake workers, and waits until it listens.
    pub async fn start(&self) -> Boss {
        self.launch(&binary("model-boss-fake-worker")).start().await
    }

    /// Starts a coordinator with the real worker, and waits until it listens.
    pub async fn start_with_real_worker(&self) -> Boss {
        self.launch(&binary("model-boss-worker")).start().await
    }

    /// The command line of a coordinator in this sandbox, which may be changed and started.
    pub fn launch(&self, worker: &Path) -> Launch {
        let config = self.path("model-boss.toml");
        let (first, last, run) = (self.ports.start(), self.ports.end(), self.path("run"));
        let own = format!(
            "worker_ports = \"{first}-{last}\"\nruntime_dir = \"{}\"\ninherit_env = [\"{MARK_VARIABLE}\", \"WANTED_*\"]\n",
            run.display()
        );
        std::fs::write(&config, own + &self.config).unwrap();
        let mut launch = Launch::new(&binary("model-boss"), &self.mark, Arc::clone(&self.folder));
        launch.command.current_dir(self.folder.path()).arg("serve").args(["--port", "0"]);
        launch.command.arg("--config").arg(config);
        launch.command.arg("--manifests").arg(self.path("manifests"));
        launch.command.arg("--state-dir").arg(self.path("state"));
        launch.command.arg("--worker-binary").arg(worker);
        launch
    }
}
