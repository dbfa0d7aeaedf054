//! What a stand-in worker does, and what it and a test say to each other. Knows no sockets and no processes.
//!
//! A manifest sets it in `[custom.fake]`, a file beside the (absent) weights or the environment over that.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use model_boss_protocol::{ByteCount, Generation};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The file in the model's source folder that says how its stand-in worker behaves.
pub const FILE: &str = "fake.json";

/// `FAKE_WORKER_TOKENS_PER_S=50` sets the field `tokens_per_s`, over what the file says.
pub const VARIABLE_PREFIX: &str = "FAKE_WORKER_";

/// How a stand-in worker behaves. Everything has a default: load at once, answer at once, never fail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Behaviour {
    /// A Unix socket where a test listens: the worker reports there ([`Report`]), is told how to behave (which replaces
    /// everything else here) and takes [`Command`]s.
    pub control: Option<PathBuf>,

    /// Time from the start line to readiness, in milliseconds.
    pub load_ms: u64,
    /// Stay loading until [`Command::FinishLoad`].
    pub hold_load: bool,
    /// Bytes to allocate and touch while loading.
    pub memory: u64,
    /// What it says it holds in all once it is loaded, spread over its devices as its lease is; absent: its lease.
    pub holds: Option<ByteCount>,
    /// Exit with this code where readiness would be.
    pub load_exit: Option<i32>,
    /// What to write to standard error before `load_exit`.
    pub load_message: String,
    /// Show a proof that is not this spawn's.
    pub wrong_proof: bool,
    /// Delay of every health answer, in milliseconds.
    pub health_ms: u64,
    /// The context it says it serves, in tokens, unless it is started with another one.
    pub context_length: u64,

    /// The answer's text; without it, `tokens` canned words.
    pub reply: Option<String>,
    /// Length of a canned answer, in tokens.
    pub tokens: u64,
    /// Speed of an answer; 0 is as fast as possible.
    pub tokens_per_s: f64,
    /// Time from the request to the first token, in milliseconds.
    pub first_token_ms: u64,
    /// Answer with a JSON text of the request as it arrived: `{"body": …, "headers": …, "env": …}`.
    pub echo: bool,
    /// Stop stepping after this many tokens of a request until [`Command::Decode`]: a hang, as seen from outside.
    pub hold_after_tokens: Option<u64>,
    /// Die after this many tokens of a request.
    pub crash_after_tokens: Option<u64>,
    /// Die when the n-th request arrives (1 is the first).
    pub crash_at_request: Option<u64>,
    /// Exit code of a crash.
    pub crash_exit: i32,
    /// Answer every request with this error.
    pub refuse: Option<Refusal>,
    /// Answer every request with something that is no answer.
    pub malformed: Option<Malformed>,
    /// Answer every request with these bytes, and close the connection.
    pub raw: Option<RawAnswer>,
    /// Take SIGTERM as a joke.
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

/// An error answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// `error.code`.
    pub code: String,
    /// `error.message`.
    pub message: String,
}

/// An answer byte for byte, head and all. Its middle is written as often as asked, so that it may be long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawAnswer {
    /// What comes first.
    pub first: String,
    /// What is repeated.
    pub piece: String,
    /// How often.
    pub times: u64,
    /// What comes last.
    pub last: String,
}

/// Ways not to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Malformed {
    /// Status 200, a body that is not JSON.
    NotJson,
    /// Bytes that are not HTTP.
    NotHttp,
    /// The head promises more bytes than come, then the connection closes.
    CutBody,
    /// The connection closes without a byte; the process lives on.
    Hangup,
}

/// Why a behaviour could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BehaviourError {
    /// The file is there and cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A value is wrong, from the file or from the environment.
    #[error("cannot use the behaviour from [custom.fake] of the manifest, {path} and FAKE_WORKER_*")]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
}

impl Behaviour {
    /// The behaviour for the model at `source`: what its manifest says, then [`FILE`] in that folder if there is one, then
    /// the variables.
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
            // Nothing is loaded from there: whether there are weights does not matter.
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

/// News from a stand-in worker, one JSON line each. End of file means that the process is gone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum Report {
    /// The start line was read; the worker waits for its [`Behaviour`], one JSON line.
    Spawned {
        /// The process.
        pid: u32,
        /// Where it will listen.
        port: u16,
        /// Which filling of the slot it is.
        generation: Generation,
        /// Its environment.
        env: BTreeMap<String, String>,
        /// What its start line says, without the secrets.
        spec: Value,
    },
    /// It serves.
    Ready,
    /// A request arrived.
    Request {
        /// Counts this worker's requests from 1.
        number: u64,
        /// Its path.
        path: String,
        /// Its headers, without the token.
        headers: BTreeMap<String, String>,
        /// Its body; a text when it is not JSON.
        body: Value,
    },
    /// A request stands still at `hold_after_tokens`.
    Held {
        /// Which request.
        number: u64,
    },
    /// A request got its whole answer.
    Answered {
        /// Which request.
        number: u64,
    },
    /// A request's connection went away first.
    Cancelled {
        /// Which request.
        number: u64,
        /// Tokens made until then.
        tokens: u64,
    },
    /// SIGTERM arrived.
    Terminating,
}

/// What a test tells a stand-in worker, one JSON line each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// Ends `hold_load`.
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
