//! What can go wrong with leases, in words that say what to do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use model_boss_lease::{LeaseId, Process, Refusal};
use model_boss_protocol::DeviceId;

/// An operation on the ledger failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it.
    #[error("{what} is in use by {holder}; {advice}")]
    InUse {
        /// What two processes want.
        what: String,
        /// Who has it: `process 4711 (state folder …)`.
        holder: String,
        /// What to do.
        advice: &'static str,
    },
    /// A folder or file could not be used.
    #[error("cannot {act} {path}")]
    Io {
        /// `create`, `read`, `lock`.
        act: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The folder for locks is somebody else's.
    #[error("{0} belongs to another user; set runtime_dir to a folder of your own")]
    ForeignFolder(PathBuf),
    /// The store cannot be reached. Nothing is granted; what is held is kept.
    #[error("the lease store at {server} cannot be reached; nothing new is started until it is back")]
    Unavailable {
        /// Where, without credentials.
        server: String,
        /// Why.
        #[source]
        source: Unreachable,
    },
    /// The store failed a moment ago, or was never opened.
    #[error("{store} cannot be used: {detail}; nothing new is started until it can")]
    Away {
        /// Which store, without credentials.
        store: String,
        /// Why.
        detail: String,
    },
    /// The store would throw the ledger away when memory gets short.
    #[error(
        "the Redis server at {server} may evict keys (maxmemory-policy is {policy}): it would lose leases; set maxmemory-policy to noeviction"
    )]
    Evicts {
        /// Where, without credentials.
        server: String,
        /// Its policy.
        policy: String,
    },
    /// The store lacks what is needed.
    #[error("the Redis server at {server} is version {version}; leases need Redis 6.2 or newer, or Valkey")]
    TooOld {
        /// Where, without credentials.
        server: String,
        /// Its version.
        version: String,
    },
    /// The URL of the store makes no sense.
    #[error("'{url}' is no address of a Redis server: {detail}")]
    BadUrl {
        /// What was given, without credentials.
        url: String,
        /// What is wrong and what would be right.
        detail: String,
    },
    /// The store answered something that does not belong to the question.
    #[error("the lease store at {server} gave an answer that was not expected: {detail}")]
    BadAnswer {
        /// Where, without credentials.
        server: String,
        /// What.
        detail: String,
    },
    /// The file is there and is not what it should be.
    #[error(
        "the lease ledger ({what}) cannot be understood: {detail}; make sure that no worker runs any more, move the file away and start again"
    )]
    Corrupt {
        /// Which store and file.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The database failed while it was used.
    #[error("the lease ledger {path} failed")]
    Database {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<redb::Error>,
    },
    /// A document that this program wrote does not serialise.
    #[error("the lease ledger cannot be written as JSON")]
    Encode(#[source] serde_json::Error),
    /// Others kept changing the ledger.
    #[error("the lease ledger was changed by others {0} times in a row while this process tried to change it")]
    Contended(u32),
    /// The kernel does not tell something that leases need.
    #[error("leases need {0}, which this system does not tell")]
    Host(&'static str),
    /// No such process to let through the gate.
    #[error("process {0} does not exist")]
    NoSuchProcess(u32),
    /// A process that the caller may not name.
    #[error(transparent)]
    NotNamed(#[from] NotNamed),
    /// The lease of this request is held, and its token was given with the grant.
    #[error("{0} is the lease of this request and is held already; its token is not given twice")]
    HeldAlready(LeaseId),
    /// The lease is gone: its process must not touch the device.
    #[error("{0} is not held any more; its process must not touch the device")]
    Lost(LeaseId),
    /// Records may have been lost: holders state theirs first.
    #[error("the lease store may have lost records; nothing is granted for {} ms", .0.as_millis())]
    Recovering(Duration),
    /// The device was never declared to this holder.
    #[error("device {0} was not declared to the lease ledger")]
    Undeclared(DeviceId),
    /// The rules refuse the operation.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The rules gave an answer that does not belong to the operation.
    #[error("the lease rules gave an answer that does not fit '{0}'")]
    Unexpected(&'static str),
}

/// Why a store cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// No connection.
    #[error("no connection")]
    Connect(#[source] redis::RedisError),
    /// The connection broke, or the answer did not come in time. Whether a change was made is not known.
    #[error("no answer")]
    Answer(#[source] redis::RedisError),
    /// None of the sentinels knows a master.
    #[error("no sentinel names a master for '{0}'")]
    NoMaster(String),
    /// It was tried a moment ago.
    #[error("{0}; tried a moment ago")]
    JustTried(String),
}

impl StoreError {
    /// Whether the store is out of reach or in no state to be used: what is held is kept, nothing new is begun. Every other
    /// error is about what was asked.
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Unavailable { .. }
            | Self::Away { .. }
            | Self::Evicts { .. }
            | Self::TooOld { .. }
            | Self::BadAnswer { .. }
            | Self::Database { .. }
            | Self::Corrupt { .. }
            | Self::Contended(_)
            | Self::Recovering(_) => true,
            Self::InUse { .. }
            | Self::Io { .. }
            | Self::ForeignFolder(_)
            | Self::BadUrl { .. }
            | Self::Encode(_)
            | Self::Host(_)
            | Self::NoSuchProcess(_)
            | Self::NotNamed(_)
            | Self::Lost(_)
            | Self::HeldAlready(_)
            | Self::Undeclared(_)
            | Self::Refused(_)
            | Self::Unexpected(_) => false,
        }
    }

    /// Whether the disk failed in a way that passes without a change of settings: it is full, or a read or write failed.
    pub fn is_failed_disk(&self) -> bool {
        let source = match self {
            Self::Io { source, .. } => source,
            Self::Database { source, .. } => match source.as_ref() {
                redb::Error::Io(source) => source,
                redb::Error::PreviousIo => return true,
                _ => return false,
            },
            _ => return false,
        };
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            || source.raw_os_error() == Some(nix::libc::EIO)
    }
}

/// An error with its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// A process that the caller may not name.
#[derive(Debug, thiserror::Error)]
pub enum NotNamed {
    /// It is not there, or not the one that bore this number.
    #[error(
        "process {} with start time {} of {} is not seen on the coordinator's host: leases are for processes that live there",
        .0.pid, .0.start_time, .0.pid_ns
    )]
    NotSeen(Process),
    /// It ends with the host.
    #[error("process {0} is the system's own and never ends: name the process that uses the memory")]
    System(u32),
    /// Its memory has leases already.
    #[error("process {0} belongs to model-boss itself: name the process of your own program")]
    Ours(u32),
    /// Somebody else's.
    #[error(
        "process {pid} runs as user {owner} and the caller is user {caller}: only its own user, or root, may name it"
    )]
    OtherUser {
        /// Which process.
        pid: u32,
        /// Whose it is.
        owner: u32,
        /// Who asks.
        caller: u32,
    },
    /// A caller without a user here, and a process of this pid namespace.
    #[error(
        "process {0} lives beside the coordinator and the caller comes over the network: \
         call from this host, at a loopback address, or name a process of a container"
    )]
    FromOutside(u32),
    /// The kernel does not tell whose connection it is.
    #[error(
        "the user of this connection cannot be known: keep it open until the answer has come, and call from this host"
    )]
    NoUser,
}
