//! What can go wrong on the command line, in words that say what to do.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use model_boss_client::ClientError;
use model_boss_client::lease_run::LeaseError;
use model_boss_config::ConfigError;
use model_boss_host::programs::ProgramError;

/// A command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// Settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// `serve`.
    #[error(transparent)]
    Serve(Box<dyn Error + Send + Sync>),
    /// `lease`.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The coordinator.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The stream ended without its end.
    #[error("the answer was cut off")]
    CutOff,
    /// Nonsense from the coordinator within a stream.
    #[error("the coordinator's answer cannot be understood")]
    Json(#[source] serde_json::Error),
    /// Neither file nor folder.
    #[error("there is no file or folder {0}")]
    NoSuchPath(PathBuf),
    /// A file where a name belongs.
    #[error("{0} is a path, and `load` takes the names of models; `model-boss run {0}` takes files and folders")]
    NotAName(PathBuf),
    /// No manifest.
    #[error("no manifest in {} describes '{}'; MODEL_BOSS_MANIFESTS or model-boss.toml say where they are, and a path names a file", .1.display(), .0)]
    NoSuchModel(String, PathBuf),
    /// A file that was named.
    #[error("{0} cannot be read")]
    Unreadable(PathBuf, #[source] io::Error),
    /// A key of the runtime configuration.
    #[error("there is no key '{0}'; there are {1}")]
    NoSuchKey(String, String),
    /// `config set` without a value.
    #[error("'{0}' is no change; write KEY=VALUE, such as maxQueue=100")]
    NotAChange(String),
    /// A manifest that was found.
    #[error("{0} cannot be written")]
    Write(PathBuf, #[source] io::Error),
    /// JSON and TOML are text.
    #[error("{0} cannot be named in text: rename it to something in UTF-8")]
    NotText(PathBuf),
    /// A coordinator for one chat.
    #[error(transparent)]
    Private(#[from] PrivateError),
    /// No program of the worker's.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The worker that would tell what a file is.
    #[error("{0} cannot be started")]
    Worker(PathBuf, #[source] io::Error),
    /// An empty pipe.
    #[error("there is no question: standard input was empty")]
    NoQuestion,
    /// Standard input.
    #[error("standard input cannot be read")]
    Input(#[source] io::Error),
    /// The line editor.
    #[error("the terminal cannot be read")]
    Terminal(#[from] rustyline::error::ReadlineError),
    /// Standard output.
    #[error("standard output cannot be written")]
    Output(#[source] io::Error),
    /// Threads, signals.
    #[error("cannot set up the runtime")]
    Runtime(#[source] io::Error),
}

/// It does not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrivateError {
    /// Folders, its log.
    #[error("cannot make a folder for a coordinator of this chat")]
    Folder(#[source] io::Error),
    /// The program.
    #[error("cannot start a coordinator for this chat")]
    Spawn(#[source] io::Error),
    /// Its own words.
    #[error("no coordinator answered, and one for this chat does not start: {said}{hint}")]
    Ended {
        /// The end of its log.
        said: String,
        /// What to do about it.
        hint: &'static str,
    },
}
