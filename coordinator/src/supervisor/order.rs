//! Settings and tools that every runner uses, and the order that it carries out.

use std::sync::Arc;
use std::time::Duration;

use model_boss_catalog::{LiveCatalog, Model};
use model_boss_core::{EngineOptions, SlotKey};
use model_boss_host::environment::ChildEnvironment;
use model_boss_host::probe::SimulatedMachine;
use model_boss_host::process::Spawner;
use model_boss_host::programs::Programs;
use model_boss_host::state_folder::StateFolder;
use model_boss_protocol::{
    Backend, ByteCount, DeviceId, InstructionSet, PromptFormat, Residency, SandboxMode, TextLimits,
};

use crate::leases::Leases;
use crate::parking::ParkingDesk;
use crate::scheduling::News;
use crate::supervisor::{Ports, Streams};

/// The tools that every runner uses.
pub(crate) struct Tools {
    /// Time limits and paths.
    pub(crate) settings: SupervisorSettings,
    /// The thread that forks.
    pub(crate) spawner: Spawner,
    /// The ports of workers.
    pub(crate) ports: Ports,
    /// The models, their engines, and how external engines are started.
    pub(crate) catalog: Arc<LiveCatalog>,
    /// The ledger, which must have a pid before its worker may start.
    pub(crate) leases: Leases,
    /// The receiver of reports.
    pub(crate) news: News,
    /// The simulated machine, if there is one: workers then report their memory themselves.
    pub(crate) machine: Option<Arc<SimulatedMachine>>,
    /// The workers' figures on streamed layers.
    pub(crate) streams: Streams,
    /// The prefixes of workers that ended.
    pub(crate) parking: Arc<ParkingDesk>,
}

/// Time limits and paths.
#[derive(Clone, Debug)]
pub(crate) struct SupervisorSettings {
    /// The workers' programs.
    pub(crate) programs: Programs,
    /// The state folder with the logs of workers.
    pub(crate) state: StateFolder,
    /// The longest load; computed from the size when absent.
    pub(crate) load_timeout: Option<Duration>,
    /// The time from SIGTERM to SIGKILL.
    pub(crate) stop_grace: Duration,
    /// The longest time that a worker may have work and make no step, or not answer its health check.
    pub(crate) hang_timeout: Duration,
    /// The environment that workers inherit.
    pub(crate) environment: ChildEnvironment,
    /// The limits of templates and tokenizers in a worker.
    pub(crate) text: TextLimits,
    /// The instructions that workers compute with on the CPU.
    pub(crate) cpu_features: Option<InstructionSet>,
    /// Whether workers confine themselves.
    pub(crate) sandbox: SandboxMode,
}

/// An order to load a model into a slot.
pub(crate) struct SpawnOrder {
    /// The slot.
    pub(crate) slot: SlotKey,
    /// The model to load.
    pub(crate) model: Arc<Model>,
    /// The backend that runs the model.
    pub(crate) backend: Backend,
    /// The devices, and the bytes on each. No device is `auto`, and the list is not empty.
    pub(crate) parts: Vec<(DeviceId, ByteCount)>,
    /// The context to serve in tokens, if a load named one.
    pub(crate) context: Option<u64>,
    /// The residency of the model's layers: `stream` where its memory is too small for all to stay.
    pub(crate) residency: Residency,
    /// The UUIDs of the GPUs of the model's lease, joined by commas; empty on `cpu`.
    pub(crate) visible_gpus: String,
    /// The load's options for the model's engine.
    pub(crate) engine: EngineOptions,
}

/// The default limit of a load: one minute, and 20 seconds for each GiB.
pub(super) fn load_timeout_for(size: ByteCount) -> Duration {
    Duration::from_secs(60).saturating_add(Duration::from_secs_f64(20.0 * size.0 as f64 / ByteCount::gib(1).0 as f64))
}

/// A prompt format as a chat template, which the candle worker takes.
pub(super) fn template_of(format: PromptFormat) -> String {
    match format {
        PromptFormat::Raw => "{% for message in messages %}{{ message.content }}{% endfor %}".to_owned(),
        PromptFormat::Alpaca => "{% for message in messages %}\
             {% if message.role in ['system', 'developer'] %}{{ message.content }}\n\n\
             {% elif message.role == 'assistant' %}### Response:\n{{ message.content }}\n\n\
             {% else %}### Instruction:\n{{ message.content }}\n\n{% endif %}{% endfor %}### Response:\n"
            .to_owned(),
    }
}
