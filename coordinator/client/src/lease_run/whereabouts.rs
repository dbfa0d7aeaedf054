//! The ledger that a `lease` command uses: a coordinator or Redis.

use std::path::PathBuf;

use clap::Args;

use super::error::LeaseError;
use crate::Client;

/// The place where leases are kept: the Redis server, if one is named, else the coordinator that --url names.
#[derive(Clone, Debug, Args)]
pub struct LedgerArgs {
    /// The Redis server that keeps the ledger: redis://HOST:PORT, rediss:// for TLS,
    /// redis+sentinel://HOST,HOST/SERVICE. Without one, the coordinator is used.
    #[arg(long, value_name = "URL", env = "MODEL_BOSS_REDIS_URL", hide_env_values = true)]
    pub(super) redis: Option<String>,
    /// The folder of the host's locks, the same for every program that uses the ledger.
    #[arg(long, value_name = "FOLDER", env = "MODEL_BOSS_RUNTIME_DIR")]
    pub(super) runtime_dir: Option<PathBuf>,
}

/// The ledger that a command uses.
#[derive(Clone)]
pub(super) enum Whereabouts {
    /// The ledger in Redis.
    Redis { url: String, runtime_dir: Option<PathBuf> },
    /// A coordinator.
    Coordinator(Client),
}

impl LedgerArgs {
    pub(super) fn whereabouts(&self, url: &str) -> Result<Whereabouts, LeaseError> {
        match self.redis.as_ref().filter(|url| !url.is_empty()) {
            Some(url) => Ok(Whereabouts::Redis { url: url.clone(), runtime_dir: self.runtime_dir.clone() }),
            None => Ok(Whereabouts::Coordinator(Client::of_environment(url)?)),
        }
    }
}
