//! The answers of the views: the state of the process, its slots, its queue, its devices and its clients.

use std::collections::BTreeMap;

use model_boss_core::{ClientView, Decision, DeviceView, QueuedView, RunningView, SlotView};
use model_boss_http::memory::MemoryUse;
use model_boss_protocol::{
    ByteCount, Category, ClientId, DeviceId, InstructionSet, ModelId, RequestId, SandboxState, StreamStats,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::leases::StoreStatus;
use crate::metrics::{LastInference, Totals};
use crate::parking::{ParkedModel, ParkingReport};

/// The state of the process in one word.
#[derive(Serialize, JsonSchema)]
pub(crate) struct StatusWord {
    /// `ok`, `draining`, `lease_store_recovering` or `lease_store_unavailable`.
    pub(super) status: &'static str,
}

/// The program that answers.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RootAnswer {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    pub(super) status: &'static str,
}

/// The fields of the health answer that MM-8 requires.
#[derive(Serialize, JsonSchema)]
pub(crate) struct HealthAnswer {
    pub(super) status: &'static str,
    pub(super) version: &'static str,
    /// The model that was loaded last.
    pub(super) model_loaded: Option<ModelId>,
    /// Its files.
    pub(super) checkpoint_loaded: Option<String>,
    /// Every loaded model, the latest first.
    pub(super) all_models_loaded: Vec<LoadedModel>,
    /// The state of the lease store.
    pub(super) leases: StoreStatus,
    /// Faults that an operator has to correct.
    pub(super) problems: Vec<String>,
}

/// A loaded model.
#[derive(Serialize, JsonSchema)]
pub(crate) struct LoadedModel {
    pub(super) model_name: ModelId,
    /// `ORG/NAME:FILE` of a file in the Hugging Face cache, else a path.
    pub(super) checkpoint: Option<String>,
    /// The time of the last use, in seconds since 1970.
    pub(super) last_use: f64,
    #[serde(rename = "type")]
    pub(super) category: Category,
    /// The first of the model's devices.
    pub(super) device: Option<DeviceId>,
    /// All the model's devices: a split model has several (DM-4).
    pub(super) devices: Vec<DeviceId>,
    pub(super) backend: &'static str,
    pub(super) backend_url: Option<String>,
}

/// Sums since the start, and figures of this moment.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Stats {
    pub(super) uptime_s: f64,
    /// The most recent inference.
    #[serde(flatten)]
    pub(super) recent: Recent,
    pub(super) models: Vec<ModelTotals>,
    /// Providers that were used since the start; `GET /api/v1/providers` has the day and the models.
    pub(super) providers: Vec<ProviderTotals>,
    /// Figures of streamed layers by model (RS-9), as workers last reported them.
    pub(super) streams: BTreeMap<ModelId, StreamStats>,
    pub(super) devices: Vec<DeviceTotals>,
    /// Prefixes of models that are not in memory (EN-3).
    pub(super) parking: ParkingReport,
    /// The memory of bodies and answers in flight.
    pub(super) request_memory: MemoryUse,
    pub(super) queued: usize,
    pub(super) running: usize,
}

/// The totals of one model.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ModelTotals {
    pub(super) model_name: ModelId,
    #[serde(flatten)]
    pub(super) totals: Totals,
}

/// The totals of one provider.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ProviderTotals {
    pub(super) provider: String,
    #[serde(flatten)]
    pub(super) totals: model_boss_cloud::RequestCounts,
}

/// The totals of one device, as BC-6 requires them.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DeviceTotals {
    pub(super) device: DeviceId,
    pub(super) entries: usize,
    pub(super) bytes: ByteCount,
    /// The retention budget for idle models; `null` for none.
    pub(super) budget: Option<ByteCount>,
}

/// The most recent inference. Its fields are present even before the first.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Recent {
    Some(LastInference),
    None {
        input_tokens: Option<u64>,
        output_tokens: Option<u64>,
        time_to_first_token: Option<f64>,
        tokens_per_second: Option<f64>,
        model_name: Option<ModelId>,
        at: Option<f64>,
    },
}

/// Every slot that is not idle.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SlotsAnswer {
    pub(super) slots: Vec<SlotObject>,
    /// The models that have parked prefixes (EN-3).
    pub(super) parked: Vec<ParkedModel>,
}

/// A slot. `layers` has the worker's last figures of streamed layers; `null` where all are resident, or before the
/// first report.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SlotObject {
    #[serde(flatten)]
    pub(super) slot: SlotView,
    pub(super) layers: Option<StreamStats>,
    /// The names of the adapters that requests may name behind the model's.
    pub(super) adapters: Vec<String>,
}

/// Waiting requests, in their order, and every request that was dispatched and has not ended.
#[derive(Serialize, JsonSchema)]
pub(crate) struct QueueAnswer {
    pub(super) queue: Vec<QueuedView>,
    /// The number of all waiting requests.
    pub(super) total: usize,
    pub(super) running: Vec<RunningView>,
}

/// The sender of a request, and what it may do.
#[derive(Serialize, JsonSchema)]
pub(crate) struct AccessAnswer {
    /// Whether requests need a key.
    pub(super) needs_key: bool,
    /// The client that the key belongs to; `null` without a key, and for a key without a name.
    pub(super) client: Option<ClientId>,
    /// The scopes of the routes that the sender may use.
    pub(super) scopes: Vec<&'static str>,
}

/// A request that was cancelled.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CancelAnswer {
    /// `cancelled`.
    pub(super) status: &'static str,
    pub(super) id: RequestId,
}

/// Every device.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DevicesAnswer {
    pub(super) devices: Vec<DeviceObject>,
}

/// A device: its probe's last sample, and the accounts of the scheduler.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DeviceObject {
    /// Whether the device can be used.
    pub(super) available: bool,
    pub(super) name: String,
    pub(super) uuid: Option<String>,
    /// Bytes in all; `null` is unknown.
    pub(super) total: Option<ByteCount>,
    /// Bytes in use; `null` is unknown.
    pub(super) used: Option<ByteCount>,
    /// The reason why the device cannot be used.
    pub(super) problem: Option<String>,
    /// `per_process`, or `degraded` where the driver does not tell processes apart.
    pub(super) accounting: &'static str,
    /// The confinement of workers on the device.
    pub(super) sandbox: SandboxState,
    /// The instructions that products use on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub(super) cpu_features: Option<InstructionSet>,
    #[serde(flatten)]
    pub(super) account: Option<DeviceView>,
}

/// Recent decisions, oldest first.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DecisionsAnswer {
    pub(super) decisions: Vec<Decision>,
}

/// Recent clients, and every configured profile.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ClientsAnswer {
    pub(super) clients: Vec<ClientObject>,
    pub(super) profiles: Vec<ClientSettings>,
}

/// A client with the rules that apply to it.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ClientObject {
    #[serde(flatten)]
    pub(super) client: ClientView,
    /// The limits and permissions; `null` for the operator, who has none.
    pub(super) profile: Option<BTreeMap<String, SettingView>>,
}

/// The rules of one client.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ClientSettings {
    pub(super) id: ClientId,
    pub(super) profile: BTreeMap<String, SettingView>,
}

/// A value and its source.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct SettingView {
    pub(super) value: Value,
    pub(super) origin: String,
}
