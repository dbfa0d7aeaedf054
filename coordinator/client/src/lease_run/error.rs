//! Failures of the `lease` commands, each with its exit code.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use model_boss_lease_store::StoreError;
use model_boss_protocol::{DeviceId, ErrorCode};

use crate::ClientError;

/// Why a `lease` command failed.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The ledger in Redis failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The coordinator refused, or could not be reached.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The coordinator does not answer in time.
    #[error("the coordinator at {url} did not answer within {} s", limit.as_secs())]
    Slow {
        /// The address of the coordinator.
        url: String,
        /// The time limit.
        limit: Duration,
    },
    /// The coordinator's answer does not follow its API.
    #[error("the coordinator's answer cannot be understood: {0}; are both of the same version?")]
    Answer(String),
    /// The lease was attached or renewed before it was granted.
    #[error("the lease is not granted yet")]
    NotGranted,
    /// The operating system refused a resource that this command needs.
    #[error("cannot {0}")]
    System(&'static str, #[source] io::Error),
    /// The program could not be started.
    #[error("cannot run {}", .0.display())]
    Program(PathBuf, #[source] io::Error),
    /// The request is larger than the device.
    #[error("it can never fit: {0}")]
    NeverFits(String),
    /// The limit of `--wait` has passed.
    #[error("the memory did not come free within {} s: {reason}", waited.as_secs())]
    WaitedTooLong {
        /// The time waited.
        waited: Duration,
        /// The last reason for waiting.
        reason: String,
    },
    /// The machine has no GPU, or none that can be leased.
    #[error("no GPU can be leased here; name a device with --device, such as --device cpu")]
    NoGpu,
    /// The device does not exist.
    #[error("there is no device {0} here; there are: {1}")]
    NoDevice(DeviceId, String),
    /// The lease does not exist.
    #[error("no lease is called '{0}'; `model-boss lease list` shows them")]
    NoLease(String),
    /// The lease is still held by living processes.
    #[error("{0} is held: end its program first ({1}); an operator can end the lease without it: --force")]
    StillHeld(String, String),
    /// The output could not be serialised.
    #[error("cannot be written as JSON")]
    Json(#[source] serde_json::Error),
    /// The thread that keeps the lease ended unexpectedly.
    #[error("the thread that keeps the lease has ended; its program was ended too")]
    Keeper,
}

impl LeaseError {
    /// Whether the ledger is out of reach for now. Existing leases are kept then; new ones are not requested.
    pub(super) fn is_outage(&self) -> bool {
        const PASSING: [ErrorCode; 3] =
            [ErrorCode::LeaseStoreUnavailable, ErrorCode::LeaseStoreRecovering, ErrorCode::Draining];
        match self {
            Self::Store(error) => error.is_outage(),
            Self::Client(ClientError::NoCoordinator(..) | ClientError::Connection(..)) | Self::Slow { .. } => true,
            // A proxy answers in place of a coordinator that restarts.
            Self::Client(ClientError::Stranger { status, .. }) => *status >= 500,
            Self::Client(ClientError::Api(body)) => {
                PASSING.iter().any(|code| body.error.code.as_deref() == Some(code.as_str()))
            }
            _ => false,
        }
    }
}
