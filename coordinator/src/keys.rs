//! The keys in use: they tell who sends a request. The file is followed, so that a key that is made or revoked counts
//! within a second.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use http::HeaderMap;
use http::header::AUTHORIZATION;
use model_boss_access::{KeyFile, KeyHolder, KeyRecord, KeyScope, KeySet};
use model_boss_host::clocks::unix_seconds;
use model_boss_host::owner::{OWNER_KEY, OwnerKey};
use model_boss_host::watched_file::{self, FileVersion, WatchedFile};
use model_boss_jobs::{JobOwner, SenderKind};
use model_boss_protocol::{ApiError, ErrorCode};
use model_boss_tasks::KeyRule;

use crate::tasks::LiveTasks;

/// The largest file in bytes.
const MAX_SIZE: u64 = 4 << 20;

/// The keys of the file's last valid version.
pub(crate) struct LiveKeys {
    file: WatchedFile,
    tasks: Arc<LiveTasks>,
    current: RwLock<Arc<CurrentKeys>>,
}

/// One version of the keys.
#[derive(Debug, Default)]
pub(crate) struct CurrentKeys {
    pub(crate) set: KeySet,
    /// Whether requests need a key. Once there was one, this stays: a file that is lost opens no door.
    pub(crate) needed: bool,
    /// The fault of the file's present version, which is then not in use.
    pub(crate) problem: Option<String>,
}

/// The sender of a request.
#[derive(Clone, Debug)]
pub(crate) enum RequestSender {
    /// No keys are in use: any program of this machine.
    Anyone,
    /// The user who runs this process, by the owner key.
    Owner,
    /// The holder of a key without a name, which permits everything.
    Unnamed,
    /// A client, by its key.
    Client(Arc<KeyRecord>),
}

impl LiveKeys {
    /// The keys of this file, as it was read at the start. `tasks` holds clients to their keys' limits.
    pub(crate) fn new(path: &Path, read: Option<KeyFile>, tasks: Arc<LiveTasks>) -> Self {
        let live = Self { file: WatchedFile::new(path, MAX_SIZE), tasks, current: RwLock::default() };
        if let Some(file) = read {
            live.set(&file);
        }
        // A version that was written after that read is judged now.
        live.judge(live.file.adopt());
        live
    }

    /// The current version.
    pub(crate) fn current(&self) -> Arc<CurrentKeys> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Follows the file as long as the process runs.
    pub(crate) async fn follow(self: Arc<Self>) {
        watched_file::follow(move || self.look()).await;
    }

    /// Reads the file once. A new version counts when the next read is equal.
    pub(crate) fn look(&self) {
        if let Some(version) = self.file.look() {
            self.judge(version);
        }
    }

    /// The sender of a request with these headers.
    ///
    /// Errors: 401 without a valid key where one is needed.
    pub(crate) fn identify(&self, headers: &HeaderMap, owner: Option<&OwnerKey>) -> Result<RequestSender, ApiError> {
        let offered = headers.get(OWNER_KEY).and_then(|key| key.to_str().ok());
        if let (Some(owner), Some(offered)) = (owner, offered)
            && owner.accept(offered)
        {
            return Ok(RequestSender::Owner);
        }
        let current = self.current();
        if !current.needed {
            return Ok(RequestSender::Anyone);
        }
        let now = unix_seconds();
        // Some clients send both headers, and the first may hold a key for another server.
        match offered_keys(headers).find_map(|key| current.set.holder(key, now)) {
            Some(KeyHolder::Client(record)) => Ok(RequestSender::Client(record)),
            Some(KeyHolder::Unnamed) => Ok(RequestSender::Unnamed),
            None => Err(ApiError::new(
                ErrorCode::InvalidApiKey,
                match offered_keys(headers).next() {
                    Some(_) => "this key is none of this server's, or it was revoked or has expired",
                    None => "this server needs an API key: Authorization: Bearer KEY, or x-api-key: KEY",
                },
            )),
        }
    }

    /// The sender of a job that was accepted earlier, with the permissions that it has now.
    ///
    /// Errors: 401 where its key was revoked or has expired, or where keys are needed now and it had none.
    pub(crate) fn sender_of(&self, owner: &JobOwner) -> Result<RequestSender, ApiError> {
        let current = self.current();
        let gone = |what: String| Err(ApiError::new(ErrorCode::InvalidApiKey, what));
        match owner.kind {
            SenderKind::Owner => Ok(RequestSender::Owner),
            SenderKind::Anyone if !current.needed => Ok(RequestSender::Anyone),
            SenderKind::Anyone => gone("it was submitted without a key, and every request needs one now".to_owned()),
            SenderKind::Unnamed if current.set.unnamed() > 0 => Ok(RequestSender::Unnamed),
            SenderKind::Unnamed => gone("the keys without a name were revoked".to_owned()),
            SenderKind::Client => {
                let name = owner.key.as_deref().unwrap_or_default();
                let valid = |record: &&Arc<KeyRecord>| record.name.as_str() == name && record.is_valid(unix_seconds());
                match current.set.records().iter().find(valid) {
                    Some(record) => Ok(RequestSender::Client(Arc::clone(record))),
                    None => gone(format!("the keys of '{name}' were revoked or have expired")),
                }
            }
        }
    }

    /// Adopts a valid version; otherwise the last valid one stays in use.
    fn judge(&self, version: FileVersion) {
        let read = match version {
            FileVersion::Content(bytes) if bytes.len() as u64 > MAX_SIZE => Err("is too long".to_owned()),
            FileVersion::Content(bytes) => match String::from_utf8(bytes) {
                Ok(text) => KeyFile::parse(self.file.path(), &text).map_err(|error| error.to_string()),
                Err(_) => Err("is not a text in UTF-8".to_owned()),
            },
            // No file has no keys: those of before are revoked.
            FileVersion::Missing => Ok(KeyFile::default()),
            FileVersion::Unreadable(error) => Err(format!("cannot be read: {error}")),
        };
        match read {
            Ok(file) => self.set(&file),
            Err(problem) => {
                tracing::warn!("keys not read again: {}: {problem}", self.file.path().display());
                let before = self.current();
                let (set, needed) = (before.set.clone(), before.needed);
                self.replace(CurrentKeys { set, needed, problem: Some(problem) });
            }
        }
    }

    fn set(&self, file: &KeyFile) {
        let before = self.current();
        let set = KeySet::new(file);
        let needed = before.needed || !file.is_empty();
        if before.needed && file.is_empty() {
            tracing::warn!("{} holds no key: every request is refused", self.file.path().display());
        } else if needed && !before.needed {
            tracing::info!("requests need a key from now on");
        }
        self.tasks.set_keys(rules(&set));
        self.replace(CurrentKeys { set, needed, problem: None });
    }

    fn replace(&self, next: CurrentKeys) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
    }
}

/// The limits of each client's key, as the rules of names apply them.
fn rules(set: &KeySet) -> BTreeMap<model_boss_protocol::ClientId, KeyRule> {
    let rule = |record: &Arc<KeyRecord>| {
        let limits = record.limits.clone();
        let rule = KeyRule {
            allowed_models: limits.allowed_models,
            daily_tokens: limits.daily_tokens,
            daily_spend_usd: limits.daily_spend_usd,
        };
        (record.name.clone(), rule)
    };
    set.records().iter().map(rule).collect()
}

impl RequestSender {
    /// Whether the sender may use a route that needs one of these scopes.
    pub(crate) fn permits(&self, scopes: &[KeyScope]) -> bool {
        match self {
            Self::Anyone | Self::Owner | Self::Unnamed => true,
            Self::Client(record) => scopes.is_empty() || scopes.iter().any(|scope| record.permits(*scope)),
        }
    }

    /// The client that the key is bound to; `None` where requests may name any.
    pub(crate) fn bound(&self) -> Option<&KeyRecord> {
        match self {
            Self::Client(record) => Some(record),
            Self::Anyone | Self::Owner | Self::Unnamed => None,
        }
    }

    /// The sender, as the audit log names it.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Anyone => "anyone",
            Self::Owner => "owner",
            Self::Unnamed => "key without a name",
            Self::Client(record) => record.name.as_str(),
        }
    }
}

fn offered_keys(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|text| {
        let (scheme, key) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    bearer.into_iter().chain(headers.get("x-api-key").and_then(|key| key.to_str().ok()))
}
