//! Which program runs which backend, and where it is.

use std::path::{Path, PathBuf};

use model_boss_protocol::Backend;

/// Our worker's program.
const WORKER: &str = "model-boss-worker";
/// The stand-in's.
const FAKE_WORKER: &str = "model-boss-fake-worker";

/// The programs that were found when the process began.
#[derive(Clone, Debug)]
pub struct Programs {
    worker: Option<PathBuf>,
    fake: Option<PathBuf>,
    own: Option<PathBuf>,
}

/// A program that is needed is not there.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// Not where it is looked for.
    #[error("the program '{0}' is neither beside this program nor on PATH; build it (scripts/run does){1}")]
    Missing(&'static str, &'static str),
    /// The configured worker program.
    #[error("worker_binary {0} is not a file")]
    NotAFile(PathBuf),
}

impl Programs {
    /// Looks for them; `worker` is the configured program of our own worker.
    pub fn find(worker: Option<&Path>) -> Result<Self, ProgramError> {
        let worker = match worker {
            Some(program) if !program.is_file() => return Err(ProgramError::NotAFile(program.to_owned())),
            Some(program) => Some(program.to_owned()),
            None => find(WORKER),
        };
        Ok(Self { worker, fake: find(FAKE_WORKER), own: std::env::current_exe().ok() })
    }

    /// The program of a backend.
    pub fn of(&self, backend: Backend) -> Result<&PathBuf, ProgramError> {
        match backend {
            Backend::Candle | Backend::Diffusers => {
                self.worker.as_ref().ok_or(ProgramError::Missing(WORKER, ", or set worker_binary"))
            }
            // Its guard is this very program.
            Backend::LlamaServer | Backend::Command => self.own.as_ref().ok_or(ProgramError::Missing("model-boss", "")),
            Backend::Fake => self.fake.as_ref().ok_or(ProgramError::Missing(FAKE_WORKER, "")),
        }
    }
}

/// Beside this program, else on PATH.
fn find(name: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(name)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join(name));
    beside.into_iter().chain(on_path).find(|program| program.is_file())
}
