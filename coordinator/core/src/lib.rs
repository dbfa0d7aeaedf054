//! All decisions of the coordinator: queue, pool, slots, placement. The crate is pure: events in, effects out.
//!
//! It has no clock, sockets, processes or Redis. Each [`Event`] has the moment at which it happened, and is answered
//! with [`Effect`]s. The same events give the same effects.

mod adapter_name;
mod admission;
mod by_number;
mod catalog;
mod client;
mod cores;
mod decision;
mod device;
mod effect;
mod event;
mod eviction;
mod failure;
mod footprint;
mod foreign;
mod ladder;
mod layers;
mod ledger;
mod model;
mod need;
mod order;
mod phase;
mod placement;
mod pool;
mod principal;
mod queue;
mod reason;
mod refusal;
mod residency;
mod running_view;
mod scheduler;
mod schema;
mod settings;
mod slot;
mod slot_key;
mod split;
#[cfg(test)]
mod testing;
mod time;
mod timer;
mod view;

pub use adapter_name::AdapterName;
pub use decision::{Decision, Verdict};
pub use effect::Effect;
pub use event::{DeviceObservation, Event, ExitReport, RequestOutcome, Submission};
pub use footprint::FOOTPRINTS_KEPT;
pub use ladder::{DEFAULT_PATIENCE, Ladder, Rung, RungChoice, RungReason, Standing, Target};
pub use ledger::{AskedLease, LeaseShare, LedgerState};
pub use model::{
    EngineOptions, Footprint, LayerOptions, LoadOptions, ModelDescription, SizeEstimate, SizeRule, Streaming,
};
pub use order::{Input, Order};
pub use phase::{LoadPhase, ReadyPhase, StopPhase};
pub use principal::{Principal, PrincipalKind};
pub use reason::{Blocker, LeaveCause, Protection, WaitReason};
pub use refusal::{Refusal, RefusalReason, Subject};
pub use running_view::RunningView;
pub use scheduler::Scheduler;
pub use settings::{ClientRule, ClientRules, LoadFailurePolicy, MaxLoaded, Settings};
pub use slot::SlotState;
pub use slot_key::SlotKey;
pub use time::Moment;
pub use view::{
    ClientView, DeviceView, Eviction, LayersView, ModelState, ModelStatus, ModelView, PlanQuestion, PlanView,
    PlannedStep, QueuedView, RecentView, RequestPurpose, RungView, SlotView,
};
