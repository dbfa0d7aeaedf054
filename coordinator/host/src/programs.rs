//! The program of each backend, and its path.

use std::path::{Path, PathBuf};

use model_boss_protocol::Backend;

/// The program of the candle worker.
const WORKER: &str = "model-boss-worker";
/// The program of the fake worker.
const FAKE_WORKER: &str = "model-boss-fake-worker";

/// The programs that were found at the start of this process.
#[derive(Clone, Debug)]
pub struct Programs {
    worker: Option<PathBuf>,
    fake: Option<PathBuf>,
    own: Option<PathBuf>,
}

/// Why a required program cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The program is neither in the folder of the running program nor on PATH.
    #[error("the program '{0}' is neither beside this program nor on PATH; build it (scripts/run does){1}")]
    Missing(&'static str, &'static str),
    /// The configured path of the worker is not a file.
    #[error("worker_binary {0} is not a file")]
    NotAFile(PathBuf),
}

impl Programs {
    /// Finds the programs; `worker` is the configured path of the candle worker.
    pub fn find(worker: Option<&Path>) -> Result<Self, ProgramError> {
        let worker = match worker {
            Some(program) if !program.is_file() => return Err(ProgramError::NotAFile(program.to_owned())),
            Some(program) => Some(program.to_owned()),
            None => find(WORKER),
        };
        Ok(Self { worker, fake: find(FAKE_WORKER), own: std::env::current_exe().ok() })
    }

    /// The program that runs a backend.
    pub fn of(&self, backend: Backend) -> Result<&PathBuf, ProgramError> {
        match backend {
            // A program that speaks is run by our worker.
            Backend::Candle | Backend::Diffusers | Backend::Speech => {
                self.worker.as_ref().ok_or(ProgramError::Missing(WORKER, ", or set worker_binary"))
            }
            // An external engine is started by this very program, as its guard.
            Backend::LlamaServer | Backend::Command => self.own.as_ref().ok_or(ProgramError::Missing("model-boss", "")),
            Backend::Fake => self.fake.as_ref().ok_or(ProgramError::Missing(FAKE_WORKER, "")),
        }
    }
}

/// The path of a program in the folder of the running program, else on PATH.
fn find(name: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(name)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join(name));
    beside.into_iter().chain(on_path).find(|program| program.is_file())
}
