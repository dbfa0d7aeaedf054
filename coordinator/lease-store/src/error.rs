//! What can go wrong with leases, in words that say what to do.

use std::io;
use std::path::PathBuf;

use model_boss_lease::{LeaseId, Refusal};
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
    /// The lease is gone: its process must not touch the device.
    #[error("{0} is not held any more; its process must not touch the device")]
    Lost(LeaseId),
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
