//! The choice of the store that keeps the ledger, and how it is opened.

use std::path::{Path, PathBuf};

use model_boss_config::{Config, RedisUrl};
use model_boss_jobs::{JobStoreError, RecordStore, RedbRecords, RedisRecords};
use model_boss_lease_store::{Holder, LeaseDurations, Owner, OwnerKind, StoreError, this_process};

/// The prefix that separates the ledger of a simulated machine from the host's own.
const SIMULATION: &str = "simulation";

/// The place of the ledger.
#[derive(Clone, Debug)]
pub(crate) enum StoreChoice {
    /// A file of the state folder.
    Embedded(PathBuf),
    /// Redis, shared with every program of the host that uses it.
    Redis {
        /// The URL of the server.
        url: RedisUrl,
        /// Whether the machine is simulated, and its ledger separate from that of the real one.
        simulated: bool,
    },
}

impl StoreChoice {
    /// The store that the configuration chooses.
    pub(crate) fn of(config: &Config) -> Self {
        match &config.redis_url {
            Some(url) => Self::Redis { url: url.clone(), simulated: config.simulate.is_some() },
            None => Self::Embedded(config.state_dir.clone()),
        }
    }

    /// The store's name for messages, before the store was opened.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Embedded(folder) => format!("embedded store in {}", folder.display()),
            Self::Redis { url, .. } => format!("Redis at {}", url.server()),
        }
    }

    /// The store of jobs beside the ledger, for the folder of jobs with this name.
    pub(crate) fn records(&self, folder: &str) -> Result<Box<dyn RecordStore>, JobStoreError> {
        match self {
            Self::Embedded(state_dir) => Ok(Box::new(RedbRecords::new(state_dir))),
            Self::Redis { url, .. } => Ok(Box::new(RedisRecords::new(url.secret(), folder)?)),
        }
    }

    pub(super) fn open(&self, runtime_dir: Option<&Path>, terms: &LeaseDurations) -> Result<Holder, StoreError> {
        let owner = Owner::new(this_process()?, "coordinator", OwnerKind::Coordinator);
        let terms = terms.clone();
        match self {
            Self::Embedded(folder) => Holder::embedded(folder, runtime_dir, owner, terms),
            Self::Redis { url, simulated: false } => Holder::redis(url.secret(), runtime_dir, owner, terms),
            Self::Redis { url, simulated: true } => {
                Holder::redis_beside(url.secret(), SIMULATION, runtime_dir, owner, terms)
            }
        }
    }
}
