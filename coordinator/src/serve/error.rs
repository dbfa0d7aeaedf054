//! Reasons why a coordinator does not start, or ends.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use model_boss_config::ApiKeysError;
use model_boss_host::probe::SimulationError;
use model_boss_host::programs::ProgramError;

use crate::leases::LeaseStartError;
use crate::tasks::UnusableTasks;

/// The coordinator cannot start.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeError {
    /// Everybody on the network could use the machine.
    #[error("{0} is not a loopback address: set api_keys to a file with one key per line before others can connect")]
    OpenToAll(IpAddr),
    /// The keys.
    #[error("the API keys cannot be used")]
    Keys(#[from] ApiKeysError),
    /// The rules of clients.
    #[error("the tasks and the rules of clients cannot be used")]
    Tasks(#[from] UnusableTasks),
    /// No worker program.
    #[error("models cannot be run")]
    Program(#[from] ProgramError),
    /// The machine to play.
    #[error("the machine to play cannot be used")]
    Simulation(#[from] SimulationError),
    /// Something else lies in the place of a file of the state folder.
    #[error("{0} cannot be used")]
    StateFile(PathBuf, #[source] io::Error),
    /// The address.
    #[error("cannot listen on {0}; is another coordinator running? --port takes another port")]
    Bind(SocketAddr, #[source] io::Error),
    /// The ledger.
    #[error("the lease ledger cannot be used")]
    Leases(#[from] LeaseStartError),
    /// Threads, signals.
    #[error("cannot set up {0}")]
    System(&'static str, #[source] io::Error),
    /// The driver or the ledger's thread: without either nothing can go on.
    #[error("a part of the coordinator that must not end has ended; its log says why")]
    Broken,
    /// Buckets of histograms: cannot happen with those in this program.
    #[error("cannot set up metrics")]
    Metrics(#[from] prometheus::Error),
}
