//! Errors of the command line, with messages that include a remedy.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io;
use std::path::PathBuf;

use model_boss_access::{KeyFileError, KeyRecordError};
use model_boss_catalog::PulledManifestError;
use model_boss_client::ClientError;
use model_boss_client::lease_run::LeaseError;
use model_boss_config::ConfigError;
use model_boss_host::programs::ProgramError;
use model_boss_hub::{HubError, ParseHubNameError};
use model_boss_protocol::ClientId;

/// The exit code of `serve` where another coordinator has what this one needs: `EX_TEMPFAIL` of sysexits.h.
pub(super) const OCCUPIED: u8 = 75;

/// Why the coordinator does not run.
#[derive(Debug)]
pub struct ServeFailure {
    /// The cause, for humans.
    pub error: Box<dyn Error + Send + Sync>,
    /// Whether another coordinator has the address, a device or the state folder that this one needs.
    pub is_occupied: bool,
}

impl Display for ServeFailure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Error for ServeFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

/// Why a command about keys failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeysError {
    /// The file is not valid, or cannot be read or written.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// The record would not be valid.
    #[error(transparent)]
    Record(#[from] KeyRecordError),
    /// The client has a key already.
    #[error("'{0}' has a key; `model-boss keys rotate {0}` makes another, `model-boss keys revoke {0}` ends it")]
    Exists(ClientId),
    /// The client has no key.
    #[error("{1} has no key of '{0}'; `model-boss keys list` shows whose keys there are")]
    Unknown(ClientId, PathBuf),
    /// The system gives no random bytes.
    #[error("the system gives no random bytes: {0}")]
    Random(getrandom::Error),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// `serve` failed.
    #[error(transparent)]
    Serve(#[from] ServeFailure),
    /// `keys` failed.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// `lease` failed.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The coordinator refused, or could not be reached.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// `say` has nothing to say.
    #[error("there is no text: write it behind `say`, or pipe it in")]
    NoText,
    /// The stream broke off before its last event.
    #[error("the answer was cut off")]
    CutOff,
    /// An event of the stream is not valid JSON.
    #[error("the coordinator's answer cannot be understood")]
    Json(#[source] serde_json::Error),
    /// The path is neither a file nor a folder.
    #[error("there is no file or folder {0}")]
    NoSuchPath(PathBuf),
    /// A file was given where a model's name belongs.
    #[error("{0} is a path, and `load` takes the names of models; `model-boss run {0}` takes files and folders")]
    NotAName(PathBuf),
    /// The address of another server is not valid.
    #[error(
        "'{0}' is not the address of a server; write one such as http://127.0.0.1:8080/v1, and its key by --against-key"
    )]
    BadServer(String),
    /// The variable that should have another server's key is not set.
    #[error("the variable {0} is not set, and --against-key names it as the place of the server's key")]
    NoKeyVariable(String),
    /// The warm-up of a measurement failed, so there is nothing to measure.
    #[error("'{model}' at {server} cannot be measured: {why}")]
    BenchRequest {
        /// The server's address.
        server: String,
        /// The model's name there.
        model: String,
        /// The server's error.
        why: String,
    },
    /// No manifest describes the model.
    #[error("no manifest in {} describes '{}'; MODEL_BOSS_MANIFESTS or model-boss.toml say where they are, and a path names a file", .1.display(), .0)]
    NoSuchModel(String, PathBuf),
    /// The model's files are at a path, so there is nothing to pull.
    #[error("'{0}' is at {1}, and its manifest names no repository of a hub: there is nothing to pull")]
    NotOfHub(String, PathBuf),
    /// The name is neither a manifest's nor a hub's.
    #[error("{1}; and no manifest in {0} has this name")]
    NoSuchPull(PathBuf, ParseHubNameError),
    /// The pull failed.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The pull's manifest was not written.
    #[error("the files are there, and no manifest was written: {0}")]
    PulledManifest(#[from] PulledManifestError),
    /// A package has more files than its manifest.
    #[error("'{0}' is a package, {1}; remove its folder")]
    IsPackage(String, PathBuf),
    /// A removal needs a terminal that confirms it, or `--yes`.
    #[error("{0} Say so by --yes: standard input is no terminal")]
    NotConfirmed(String),
    /// A job ended without a result.
    #[error("{id} {state}: {why}")]
    NoResult {
        /// The job or the batch.
        id: String,
        /// `failed`, `cancelled` or `expired`.
        state: String,
        /// The reason.
        why: String,
    },
    /// The body of a job is not valid JSON.
    #[error("the body is not valid JSON; a file of another kind is sent by --form NAME=@FILE")]
    Body(#[source] serde_json::Error),
    /// A part of a form has no name.
    #[error("'{0}' is no part of a form; write NAME=VALUE, or NAME=@FILE")]
    NotAPart(String),
    /// A named file cannot be read.
    #[error("{0} cannot be read")]
    Unreadable(PathBuf, #[source] io::Error),
    /// The runtime configuration has no such key.
    #[error("there is no key '{0}'; there are {1}")]
    NoSuchKey(String, String),
    /// `config set` got a key without a value.
    #[error("'{0}' is no change; write KEY=VALUE, such as maxQueue=100")]
    NotAChange(String),
    /// The manifest of a found model cannot be written.
    #[error("{0} cannot be written")]
    Write(PathBuf, #[source] io::Error),
    /// A file cannot be read.
    #[error("{0} cannot be read")]
    Read(PathBuf, #[source] io::Error),
    /// A path is not UTF-8, as JSON and TOML require.
    #[error("{0} cannot be named in text: rename it to something in UTF-8")]
    NotText(PathBuf),
    /// The coordinator for one chat did not start.
    #[error(transparent)]
    Private(#[from] PrivateError),
    /// The worker's program was not found.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The worker, which reads model files, could not be run.
    #[error("{0} cannot be started")]
    Worker(PathBuf, #[source] io::Error),
    /// Standard input is an empty pipe.
    #[error("there is no question: standard input was empty")]
    NoQuestion,
    /// Standard input cannot be read.
    #[error("standard input cannot be read")]
    Input(#[source] io::Error),
    /// The line editor failed.
    #[error("the terminal cannot be read")]
    Terminal(#[from] rustyline::error::ReadlineError),
    /// Standard output cannot be written.
    #[error("standard output cannot be written")]
    Output(#[source] io::Error),
    /// Threads or signals could not be set up.
    #[error("cannot set up the runtime")]
    Runtime(#[source] io::Error),
}

/// Why a coordinator for one chat did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrivateError {
    /// The folders or the log of the private coordinator could not be created.
    #[error("cannot make a folder for a coordinator of this chat")]
    Folder(#[source] io::Error),
    /// The program of the private coordinator could not be started.
    #[error("cannot start a coordinator for this chat")]
    Spawn(#[source] io::Error),
    /// The private coordinator ended before it served.
    #[error("no coordinator answered, and one for this chat does not start: {said}{hint}")]
    Ended {
        /// The end of the coordinator's log.
        said: String,
        /// A hint what to do.
        hint: &'static str,
    },
}
