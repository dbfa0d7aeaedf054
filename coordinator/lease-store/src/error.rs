//! Errors of leases, in words that include the remedy.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use model_boss_lease::{LeaseId, OpRefusal, Process};
use model_boss_protocol::DeviceId;

/// An operation on the ledger failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process uses the resource.
    #[error("{what} is in use by {holder}; {advice}")]
    InUse {
        /// The resource that both processes need.
        what: String,
        /// The process that uses the resource: `process 4711 (state folder …)`.
        holder: String,
        /// The remedy, as a sentence.
        advice: &'static str,
    },
    /// A folder or file could not be used.
    #[error("cannot {act} {path}")]
    Io {
        /// The failed act: `create`, `read`, `lock`.
        act: &'static str,
        /// The folder or file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Another user owns the folder for locks.
    #[error("{0} belongs to another user; set runtime_dir to a folder of your own")]
    ForeignFolder(PathBuf),
    /// The store cannot be reached. No lease is granted; held ones are kept.
    #[error("the lease store at {server} cannot be reached; nothing new is started until it is back")]
    Unavailable {
        /// The server's address, without credentials.
        server: String,
        /// The reason why the store is unreachable.
        #[source]
        source: Unreachable,
    },
    /// The store failed a moment ago, or was never opened.
    #[error("{store} cannot be used: {detail}; nothing new is started until it can")]
    Away {
        /// The store, without credentials.
        store: String,
        /// The reason, in words.
        detail: String,
    },
    /// The store would delete the ledger when memory gets short.
    #[error(
        "the Redis server at {server} may evict keys (maxmemory-policy is {policy}): it would lose leases; set maxmemory-policy to noeviction"
    )]
    Evicts {
        /// The server's address, without credentials.
        server: String,
        /// The eviction policy of the Redis server.
        policy: String,
    },
    /// The server is too old for the store's scripts.
    #[error("the Redis server at {server} is version {version}; leases need Redis 6.2 or newer, or Valkey")]
    TooOld {
        /// The server's address, without credentials.
        server: String,
        /// The version of the Redis server.
        version: String,
    },
    /// The URL of the store is invalid.
    #[error("'{url}' is no address of a Redis server: {detail}")]
    BadUrl {
        /// The given URL, without credentials.
        url: String,
        /// The fault, with a valid form.
        detail: String,
    },
    /// The store's answer does not fit the query.
    #[error("the lease store at {server} gave an answer that was not expected: {detail}")]
    BadAnswer {
        /// The server's address, without credentials.
        server: String,
        /// The answer's fault.
        detail: String,
    },
    /// The file exists and its content is invalid.
    #[error(
        "the lease ledger ({what}) cannot be understood: {detail}; make sure that no worker runs any more, move the file away and start again"
    )]
    Corrupt {
        /// The store and file.
        what: String,
        /// The content's fault.
        detail: String,
    },
    /// The database failed during an operation.
    #[error("the lease ledger {path} failed")]
    Database {
        /// The database file.
        path: PathBuf,
        /// The database's error.
        #[source]
        source: Box<redb::Error>,
    },
    /// A document that this program wrote does not serialise.
    #[error("the lease ledger cannot be written as JSON")]
    Encode(#[source] serde_json::Error),
    /// Other processes changed the ledger during each of this many attempts.
    #[error("the lease ledger was changed by others {0} times in a row while this process tried to change it")]
    Contended(u32),
    /// The kernel does not report a value that leases need.
    #[error("leases need {0}, which this system does not tell")]
    Host(&'static str),
    /// The process that should pass the gate does not exist.
    #[error("process {0} does not exist")]
    NoSuchProcess(u32),
    /// A process that the caller may not name.
    #[error(transparent)]
    NotNamed(#[from] NotNamed),
    /// The lease of this request is held, and its token was given with the grant.
    #[error("{0} is the lease of this request and is held already; its token is not given twice")]
    HeldAlready(LeaseId),
    /// The lease does not exist any more: its process must not use the device.
    #[error("{0} is not held any more; its process must not touch the device")]
    Lost(LeaseId),
    /// Records may have been lost: holders report theirs first.
    #[error("the lease store may have lost records; nothing is granted for {} ms", .0.as_millis())]
    Recovering(Duration),
    /// The device was never declared to this holder.
    #[error("device {0} was not declared to the lease ledger")]
    Undeclared(DeviceId),
    /// The rules refused the operation.
    #[error(transparent)]
    Refused(#[from] OpRefusal),
    /// The rules' outcome does not fit the operation.
    #[error("the lease rules gave an answer that does not fit '{0}'")]
    Unexpected(&'static str),
}

/// The reason why a store cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// The connection could not be opened.
    #[error("no connection")]
    Connect(#[source] redis::RedisError),
    /// The connection broke, or the answer did not arrive in time. It is unknown whether a change was made.
    #[error("no answer")]
    Answer(#[source] redis::RedisError),
    /// No sentinel has the address of a master.
    #[error("no sentinel names a master for '{0}'")]
    NoMaster(String),
    /// An attempt failed a moment ago, and the next one is not due.
    #[error("{0}; tried a moment ago")]
    JustTried(String),
}

impl StoreError {
    /// Whether the store cannot be reached or used: held leases are kept, and no load begins. Every other error
    /// concerns the request.
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

    /// Whether the disk failed in a way that may pass without a change of settings: it is full, or a read or write
    /// failed.
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

/// The reason why a caller may not name a process.
#[derive(Debug, thiserror::Error)]
pub enum NotNamed {
    /// The process does not exist, or its number belongs to another one by now.
    #[error(
        "process {} with start time {} of {} is not seen on the coordinator's host: leases are for processes that live there",
        .0.pid, .0.start_time, .0.pid_ns
    )]
    NotSeen(Process),
    /// The process never ends before the host does.
    #[error("process {0} is the system's own and never ends: name the process that uses the memory")]
    System(u32),
    /// The process is one of model-boss, whose memory has leases already.
    #[error("process {0} belongs to model-boss itself: name the process of your own program")]
    Ours(u32),
    /// The process belongs to another user.
    #[error(
        "process {pid} runs as user {owner} and the caller is user {caller}: only its own user, or root, may name it"
    )]
    OtherUser {
        /// The process id.
        pid: u32,
        /// The user that the process runs as.
        owner: u32,
        /// The user of the request.
        caller: u32,
    },
    /// The caller has no user on this host, and the process is in the coordinator's pid namespace.
    #[error(
        "process {0} lives beside the coordinator and the caller comes over the network: \
         call from this host, at a loopback address, or name a process of a container"
    )]
    FromOutside(u32),
    /// The kernel does not report the user of the connection.
    #[error(
        "the user of this connection cannot be known: keep it open until the answer has come, and call from this host"
    )]
    NoUser,
}
