//! Which store keeps the ledger, and how it is opened.

use std::path::{Path, PathBuf};

use model_boss_config::{Config, RedisUrl};
use model_boss_lease_store::{Holder, Owner, OwnerKind, StoreError, Terms, this_process};

/// What tells the ledger of a played machine from the host's own.
const PLAYED: &str = "simulation";

/// Where the ledger is.
#[derive(Clone, Debug)]
pub(crate) enum StoreChoice {
    /// In a file of the state folder.
    Embedded(PathBuf),
    /// In Redis, shared with every program of the host that uses it.
    Redis {
        /// Which server.
        url: RedisUrl,
        /// The machine is only played: its ledger says nothing about the real one.
        played: bool,
    },
}

impl StoreChoice {
    /// What the configuration says.
    pub(crate) fn of(config: &Config) -> Self {
        match &config.redis_url {
            Some(url) => Self::Redis { url: url.clone(), played: config.simulate.is_some() },
            None => Self::Embedded(config.state_dir.clone()),
        }
    }

    /// For people, before it was opened.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Embedded(folder) => format!("embedded store in {}", folder.display()),
            Self::Redis { url, .. } => format!("Redis at {}", url.server()),
        }
    }

    pub(super) fn open(&self, runtime_dir: Option<&Path>, terms: &Terms) -> Result<Holder, StoreError> {
        let owner = Owner::new(this_process()?, "coordinator", OwnerKind::Coordinator);
        let terms = terms.clone();
        match self {
            Self::Embedded(folder) => Holder::embedded(folder, runtime_dir, owner, terms),
            Self::Redis { url, played: false } => Holder::redis(url.secret(), runtime_dir, owner, terms),
            Self::Redis { url, played: true } => Holder::redis_beside(url.secret(), PLAYED, runtime_dir, owner, terms),
        }
    }
}
