//! Failures of the `lease` commands, each with its exit code.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use model_boss_lease_store::StoreError;
use model_boss_protocol::{DeviceId, ErrorCode};

use crate::ClientError;

/// `lease` failed.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The ledger.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The coordinator.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// It does not answer in time.
    #[error("the coordinator at {url} did not answer within {} s", limit.as_secs())]
    Slow {
        /// Where.
        url: String,
        /// How long it was given.
        limit: Duration,
    },
    /// It answers what its API does not say.
    #[error("the coordinator's answer cannot be understood: {0}; are both of the same version?")]
    Answer(String),
    /// Attached or renewed before it was granted.
    #[error("the lease is not granted yet")]
    NotGranted,
    /// A part of this program that the operating system did not give.
    #[error("cannot {0}")]
    System(&'static str, #[source] io::Error),
    /// The program to run.
    #[error("cannot run {}", .0.display())]
    Program(PathBuf, #[source] io::Error),
    /// Larger than the device.
    #[error("it can never fit: {0}")]
    NeverFits(String),
    /// `--wait` has passed.
    #[error("the memory did not come free within {} s: {reason}", waited.as_secs())]
    WaitedTooLong {
        /// How long.
        waited: Duration,
        /// What it waited for at the end.
        reason: String,
    },
    /// No GPU, or none that can be leased.
    #[error("no GPU can be leased here; name a device with --device, such as --device cpu")]
    NoGpu,
    /// The device does not exist.
    #[error("there is no device {0} here; there are: {1}")]
    NoDevice(DeviceId, String),
    /// No such lease.
    #[error("no lease is called '{0}'; `model-boss lease list` shows them")]
    NoLease(String),
    /// It lives.
    #[error("{0} is held: end its program first ({1}); an operator can end the lease without it: --force")]
    StillHeld(String, String),
    /// Serialising for display.
    #[error("cannot be written as JSON")]
    Json(#[source] serde_json::Error),
    /// The thread that keeps the lease ended, which it must not.
    #[error("the thread that keeps the lease has ended; its program was ended too")]
    Keeper,
}

impl LeaseError {
    /// Whether where leases are kept is out of reach for now: what is held is kept, nothing new is begun.
    pub(super) fn is_outage(&self) -> bool {
        const PASSING: [ErrorCode; 3] =
            [ErrorCode::LeaseStoreUnavailable, ErrorCode::LeaseStoreRecovering, ErrorCode::Draining];
        match self {
            Self::Store(error) => error.is_outage(),
            Self::Client(ClientError::NoCoordinator(..) | ClientError::Connection(..)) | Self::Slow { .. } => true,
            // A proxy in front of a coordinator that restarts.
            Self::Client(ClientError::Stranger { status, .. }) => *status >= 500,
            Self::Client(ClientError::Api(body)) => {
                PASSING.iter().any(|code| body.error.code.as_deref() == Some(code.as_str()))
            }
            _ => false,
        }
    }
}
