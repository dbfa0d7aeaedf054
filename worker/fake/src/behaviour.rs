//! The behaviour of a fake worker, and the messages between it and a test. Sockets and processes are handled in other
//! modules.
//!
//! A manifest sets the behaviour in `[custom.fake]`. A file beside the (absent) weights overrides it, and the
//! environment overrides both.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use model_boss_protocol::{ByteCount, CpuShare, Generation};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The file in the model's source folder with the fake worker's behaviour.
pub const FILE: &str = "fake.json";

/// The prefix of variables: `FAKE_WORKER_TOKENS_PER_S=50` sets the field `tokens_per_s`, in place of the file's
/// value.
pub const VARIABLE_PREFIX: &str = "FAKE_WORKER_";

/// The behaviour of a fake worker. All fields have defaults: load at once, answer at once, never fail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Behaviour {
    /// A Unix socket on which a test listens. The worker sends each [`Report`] there, and takes [`FakeCommand`]s. The
    /// behaviour that the test sends first replaces all other fields here.
    pub control: Option<PathBuf>,

    /// Time from the start line to readiness, in milliseconds.
    pub load_ms: u64,
    /// Whether the load lasts until [`FakeCommand::FinishLoad`].
    pub hold_load: bool,
    /// Bytes to allocate and touch while loading.
    pub memory: u64,
    /// The bytes that the worker reports to hold once it is loaded, spread over its devices like its lease; absent: its
    /// lease.
    pub holds: Option<ByteCount>,
    /// The exit code with which the worker ends instead of becoming ready.
    pub load_exit: Option<i32>,
    /// The text that the worker writes to standard error before `load_exit`.
    pub load_message: String,
    /// Whether the worker shows a proof that is not this spawn's.
    pub wrong_proof: bool,
    /// Delay of every health answer, in milliseconds.
    pub health_ms: u64,
    /// The cores that the worker reports to compute with if its model is on the host; 0: it reports none.
    pub cores: u32,
    /// The context that the worker reports to serve, in tokens, unless it is started with another one.
    pub context_length: u64,

    /// The answer's text; without it, `tokens` canned words.
    pub reply: Option<String>,
    /// Length of a canned answer, in tokens.
    pub tokens: u64,
    /// Speed of an answer; 0 is as fast as possible.
    pub tokens_per_s: f64,
    /// Time from the request to the first token, in milliseconds.
    pub first_token_ms: u64,
    /// Whether the worker answers with the request as it arrived, as JSON: `{"body": …, "headers": …, "env": …}`.
    pub echo: bool,
    /// The number of a request's tokens after which it stops until [`FakeCommand::Decode`]. From outside this looks
    /// like a hang.
    pub hold_after_tokens: Option<u64>,
    /// The number of a request's tokens after which it dies.
    pub crash_after_tokens: Option<u64>,
    /// The request at whose arrival the worker dies (1 is the first).
    pub crash_at_request: Option<u64>,
    /// The exit code of a crash.
    pub crash_exit: i32,
    /// An error with which the worker answers every request.
    pub refuse: Option<FakeError>,
    /// An invalid answer that the worker gives to every request.
    pub malformed: Option<Malformed>,
    /// Bytes with which the worker answers every request, before it closes the connection.
    pub raw: Option<RawAnswer>,
    /// Whether the worker ignores SIGTERM.
    pub ignore_sigterm: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            control: None,
            load_ms: 0,
            hold_load: false,
            memory: 0,
            holds: None,
            load_exit: None,
            load_message: String::new(),
            wrong_proof: false,
            health_ms: 0,
            cores: 8,
            context_length: 4096,
            reply: None,
            tokens: 16,
            tokens_per_s: 0.0,
            first_token_ms: 0,
            echo: false,
            hold_after_tokens: None,
            crash_after_tokens: None,
            crash_at_request: None,
            crash_exit: 134,
            refuse: None,
            malformed: None,
            raw: None,
            ignore_sigterm: false,
        }
    }
}

/// An error with which the fake worker answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FakeError {
    /// The HTTP status of the answer.
    pub status: u16,
    /// The value of `error.code`.
    pub code: String,
    /// The value of `error.message`.
    pub message: String,
}

/// An answer byte for byte, head included. Its middle part is repeated, so that the answer may be long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawAnswer {
    /// The bytes at the beginning.
    pub first: String,
    /// The bytes that are repeated.
    pub piece: String,
    /// The number of repetitions.
    pub times: u64,
    /// The bytes at the end.
    pub last: String,
}

/// Kinds of invalid answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Malformed {
    /// The answer has status 200 and a body that is not JSON.
    NotJson,
    /// Bytes that are not HTTP.
    NotHttp,
    /// The head announces more bytes than follow before the connection closes.
    CutBody,
    /// The connection closes without a byte; the process continues.
    Hangup,
}

/// The reason why a behaviour could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BehaviourError {
    /// The file exists and cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// A value of the file or of the environment is invalid.
    #[error("cannot use the behaviour from [custom.fake] of the manifest, {path} and FAKE_WORKER_*")]
    Malformed {
        /// The path of the file.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
}

impl Behaviour {
    /// The behaviour for the model at `source`: the manifest's values, overridden by [`FILE`] in that folder if it
    /// exists, then by the variables.
    pub fn read(
        manifest: &BTreeMap<String, Value>,
        source: &Path,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, BehaviourError> {
        let path = source.join(FILE);
        let mut fields = manifest.clone();
        match std::fs::read(&path) {
            Ok(bytes) => fields.extend(
                serde_json::from_slice::<BTreeMap<String, Value>>(&bytes)
                    .map_err(|source| BehaviourError::Malformed { path: path.clone(), source })?,
            ),
            // A fake worker loads no weights, so a missing folder is no error.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(source) => return Err(BehaviourError::Read { path, source }),
        }
        for (name, text) in variables {
            if let Some(field) = name.strip_prefix(VARIABLE_PREFIX) {
                let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
                fields.insert(field.to_ascii_lowercase(), value);
            }
        }
        serde_json::from_value(Value::Object(fields.into_iter().collect()))
            .map_err(|source| BehaviourError::Malformed { path, source })
    }
}

/// A report of a fake worker, as one JSON line. End of file means that the process has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum Report {
    /// The start line was read; the worker waits for its [`Behaviour`], one JSON line.
    Spawned {
        /// The process id.
        pid: u32,
        /// The port the worker will listen on.
        port: u16,
        /// The slot's generation.
        generation: Generation,
        /// The environment variables of the process.
        env: BTreeMap<String, String>,
        /// The content of the worker's start line, without the secrets.
        spec: Value,
    },
    /// The worker serves.
    Ready,
    /// A request arrived.
    Request {
        /// The request's number, counted from 1.
        number: u64,
        /// The request's path.
        path: String,
        /// The request's headers, without the token.
        headers: BTreeMap<String, String>,
        /// The request's body; a text when it is not JSON.
        body: Value,
    },
    /// A request waits at `hold_after_tokens`.
    Held {
        /// The request's number.
        number: u64,
    },
    /// A request got its whole answer.
    Answered {
        /// The request's number.
        number: u64,
    },
    /// A request's connection closed before its answer was complete.
    Cancelled {
        /// The request's number.
        number: u64,
        /// The number of tokens generated before.
        tokens: u64,
    },
    /// The coordinator gave the worker another share of the cores.
    Share {
        /// The share.
        share: CpuShare,
    },
    /// SIGTERM arrived.
    Terminating,
}

/// A command of a test to a fake worker, as one JSON line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum FakeCommand {
    /// Lets a load end that the behaviour `hold_load` holds back.
    FinishLoad,
    /// Ends `hold_after_tokens`, for every request.
    Decode,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_win_over_the_file_the_file_over_the_manifest_and_texts_need_no_quotes() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), r#"{"load_ms": 5, "tokens": 3}"#).unwrap();
        let variables = [("FAKE_WORKER_TOKENS", "7"), ("FAKE_WORKER_REPLY", "good day"), ("HOME", "/")];
        let variables = variables.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned()));
        let manifest = [("load_ms", Value::from(1)), ("holds", Value::from("2GiB"))];
        let manifest = manifest.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        let read = Behaviour::read(&manifest, folder.path(), variables).unwrap();
        let holds = Some(ByteCount::gib(2));
        let reply = Some("good day".to_owned());
        let expected = Behaviour { load_ms: 5, holds, tokens: 7, reply, ..Behaviour::default() };
        assert_eq!(read, expected);
    }

    #[test]
    fn a_misspelt_field_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), r#"{"laod_ms": 5}"#).unwrap();
        assert!(matches!(
            Behaviour::read(&BTreeMap::new(), folder.path(), std::iter::empty()),
            Err(BehaviourError::Malformed { .. })
        ));
    }
}
