//! Reasons why a coordinator does not start, or ends.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use model_boss_access::KeyFileError;
use model_boss_cli::ServeFailure;
use model_boss_host::probe::SimulationError;
use model_boss_host::programs::ProgramError;
use model_boss_http::tls::TlsError;
use model_boss_lease_store::StoreError;
use model_boss_traces::TraceError;

use crate::leases::LeaseStartError;
use crate::tasks::UnusableTasks;

/// Why the coordinator cannot start, or ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeError {
    /// The server listens on an address of the network without keys, so any machine there could use it.
    #[error("{0} is not a loopback address: make a key with `model-boss keys create NAME` before others can connect")]
    OpenToAll(IpAddr),
    /// The file of API keys is invalid.
    #[error("the API keys cannot be used")]
    Keys(#[from] KeyFileError),
    /// The certificate and its key cannot be used.
    #[error("HTTPS cannot be spoken with {0} and {1}")]
    Tls(PathBuf, PathBuf, #[source] TlsError),
    /// The file of the certificate or its key cannot be read.
    #[error("HTTPS cannot be spoken: {0} cannot be read")]
    TlsFile(PathBuf, #[source] io::Error),
    /// The rules of clients cannot be used.
    #[error("the tasks and the rules of clients cannot be used")]
    Tasks(#[from] UnusableTasks),
    /// The worker's program was not found.
    #[error("models cannot be run")]
    Program(#[from] ProgramError),
    /// The machine to simulate is invalid.
    #[error("the simulated machine cannot be used")]
    Simulation(#[from] SimulationError),
    /// The path of a state file is a folder, a link or a pipe.
    #[error("{0} cannot be used")]
    StateFile(PathBuf, #[source] io::Error),
    /// The address cannot be bound.
    #[error("cannot listen on {0}; is another coordinator running? --port takes another port")]
    Bind(SocketAddr, #[source] io::Error),
    /// The ledger could not be opened.
    #[error("the lease ledger cannot be used")]
    Leases(#[from] LeaseStartError),
    /// Threads or signals could not be set up.
    #[error("cannot set up {0}")]
    System(&'static str, #[source] io::Error),
    /// The driver or the ledger's thread ended: the coordinator cannot run without either.
    #[error("a part of the coordinator that must not end has ended; its log says why")]
    Broken,
    /// The collector of traces is configured in a way that makes no sense.
    #[error("traces cannot be sent")]
    Traces(#[from] TraceError),
    /// Buckets of histograms are invalid, which cannot happen with those in this program.
    #[error("cannot set up metrics")]
    Metrics(#[from] prometheus::Error),
}

impl ServeError {
    /// Whether another coordinator has the address, a device or the state folder.
    fn is_occupied(&self) -> bool {
        match self {
            Self::Bind(_, error) => error.kind() == io::ErrorKind::AddrInUse,
            Self::Leases(LeaseStartError::Store(error)) => matches!(error, StoreError::InUse { .. }),
            _ => false,
        }
    }
}

impl From<ServeError> for ServeFailure {
    fn from(error: ServeError) -> Self {
        Self { is_occupied: error.is_occupied(), error: error.into() }
    }
}
