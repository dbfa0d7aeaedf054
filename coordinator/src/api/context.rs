//! The values that handlers of requests use.

use std::path::PathBuf;
use std::sync::Arc;

use model_boss_catalog::LiveCatalog;
use model_boss_cloud::Clouds;
use model_boss_config::{Limits, Sse};
use model_boss_host::log_filter::LogFilter;
use model_boss_host::owner::OwnerKey;
use model_boss_host::sandbox::WorkerConfinement;
use model_boss_host::state_folder::StateFolder;
use model_boss_http::memory::MemoryBudget;
use model_boss_protocol::InstructionSet;
use model_boss_settings::RuntimeConfig;
use model_boss_traces::Traces;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::{ChangeFeed, Clock};
use crate::audit::AuditLog;
use crate::jobs::Jobs;
use crate::keys::LiveKeys;
use crate::leases::{DeviceTable, Leases, StoreWatch};
use crate::metrics::Metrics;
use crate::parking::ParkingDesk;
use crate::pulls::Pulls;
use crate::responses::ResponseStore;
use crate::scheduling::Scheduling;
use crate::supervisor::Streams;
use crate::tasks::LiveTasks;

/// The values that handlers use.
pub(crate) struct Context {
    /// The handle of the scheduler.
    pub(crate) scheduling: Scheduling,
    /// The models of this machine.
    pub(crate) catalog: Arc<LiveCatalog>,
    /// The tasks and their names.
    pub(crate) tasks: Arc<LiveTasks>,
    /// The settings that change while the process runs.
    pub(crate) config: Arc<RuntimeConfig>,
    /// The downloads of models.
    pub(crate) pulls: Arc<Pulls>,
    /// The cloud providers.
    pub(crate) clouds: Arc<Clouds>,
    /// The handle of the ledger's thread.
    pub(crate) leases: Leases,
    /// The devices' last samples.
    pub(crate) devices: DeviceTable,
    /// The instructions that workers compute with on the CPU.
    pub(crate) instructions: InstructionSet,
    /// The confinement of workers.
    pub(crate) confinement: WorkerConfinement,
    /// The state of the ledger's store.
    pub(crate) store: StoreWatch,
    /// The workers' figures on streamed layers.
    pub(crate) streams: Streams,
    /// The prefixes of workers that ended.
    pub(crate) parking: Arc<ParkingDesk>,
    pub(crate) metrics: Arc<Metrics>,
    /// The traces of requests, or none.
    pub(crate) traces: Traces,
    /// The API keys; without any, every caller on loopback is accepted.
    pub(crate) keys: Arc<LiveKeys>,
    /// The log of orders.
    pub(crate) audit: AuditLog,
    /// The owner key of this process; `None` where it could not be drawn.
    pub(crate) owner: Option<OwnerKey>,
    /// The limits on requests.
    pub(crate) limits: Limits,
    /// The memory budget of bodies and answers in flight.
    pub(crate) memory: MemoryBudget,
    /// Responses that clients may continue.
    pub(crate) responses: ResponseStore,
    /// Jobs, files and batches.
    pub(crate) jobs: Arc<Jobs>,
    /// The times of comments in streams.
    pub(crate) sse: Sse,
    /// The folder with the output of workers.
    pub(crate) logs: PathBuf,
    /// The state folder and its faults.
    pub(crate) state: StateFolder,
    /// The log of the process itself.
    pub(crate) log: LogFilter,
    /// The token is cancelled when the process has the order to end.
    pub(crate) draining: CancellationToken,
    /// The time at which the process began.
    pub(crate) started: Instant,
    /// The scheduler's time as seconds since 1970.
    pub(crate) clock: Clock,
    /// The recent changes, for readers of events.
    pub(crate) changes: Arc<ChangeFeed>,
}
