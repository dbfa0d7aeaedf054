//! The values that handlers use.

use std::path::PathBuf;
use std::sync::Arc;

use model_boss_catalog::LiveCatalog;
use model_boss_cloud::Clouds;
use model_boss_config::{ApiKeys, Limits, Sse};
use model_boss_host::log_filter::LogFilter;
use model_boss_host::owner::OwnerKey;
use model_boss_host::state_folder::StateFolder;
use model_boss_http::memory::MemoryBudget;
use model_boss_settings::RuntimeConfig;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::{Changes, Clock};
use crate::leases::{DeviceTable, Leases, StoreWatch};
use crate::metrics::Metrics;
use crate::scheduling::Scheduling;
use crate::supervisor::Streams;
use crate::tasks::LiveTasks;

/// What handlers use.
pub(crate) struct Context {
    /// The queue.
    pub(crate) scheduling: Scheduling,
    /// The models.
    pub(crate) catalog: Arc<LiveCatalog>,
    /// What names mean.
    pub(crate) tasks: Arc<LiveTasks>,
    /// What can be set while the process runs.
    pub(crate) config: Arc<RuntimeConfig>,
    /// The providers elsewhere.
    pub(crate) clouds: Arc<Clouds>,
    /// The ledger.
    pub(crate) leases: Leases,
    /// The devices as last seen.
    pub(crate) devices: DeviceTable,
    /// How the ledger's store is.
    pub(crate) store: StoreWatch,
    /// What workers say of layers that come and go.
    pub(crate) streams: Streams,
    /// What is counted.
    pub(crate) metrics: Arc<Metrics>,
    /// The keys that open it; everybody on loopback may come in without.
    pub(crate) keys: Option<ApiKeys>,
    /// What the user who runs this process shows; `None` where it could not be written.
    pub(crate) owner: Option<OwnerKey>,
    /// How large things may be.
    pub(crate) limits: Limits,
    /// What bodies and answers in flight may take in all.
    pub(crate) memory: MemoryBudget,
    /// When comments keep a stream alive.
    pub(crate) sse: Sse,
    /// Where the output of workers is kept.
    pub(crate) logs: PathBuf,
    /// What survives a restart, and what is wrong there.
    pub(crate) state: StateFolder,
    /// The log of the process itself.
    pub(crate) log: LogFilter,
    /// Set when the process is asked to end.
    pub(crate) draining: CancellationToken,
    /// When the process began.
    pub(crate) started: Instant,
    /// The scheduler's time as people know it.
    pub(crate) clock: Clock,
    /// What changed lately.
    pub(crate) changes: Arc<Changes>,
}
