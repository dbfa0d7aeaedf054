//! Every decision of the coordinator: queue, pool, slots, placement. Pure: events in, effects out.
//!
//! Knows no clock, no sockets, no processes, no Redis: [`Event`]s come in with the moment they happened, [`Effect`]s go
//! out, and the same events give the same effects.

mod admission;
mod by_number;
mod catalog;
mod client;
mod decision;
mod device;
mod event;
mod eviction;
mod failure;
mod footprint;
mod foreign;
mod ladder;
mod layers;
mod ledger;
mod order;
mod placement;
mod pool;
mod queue;
mod reason;
mod residency;
mod scheduler;
mod settings;
mod slot;
mod split;
#[cfg(test)]
mod testing;
mod time;
mod timer;
mod view;

pub use decision::{Decision, Verdict};
pub use event::{
    DeviceObservation, Effect, EngineOptions, Event, ExitReport, Footprint, LayerOptions, LoadOptions,
    ModelDescription, Outcome, SizeEstimate, SizeRule, Streaming, Submission,
};
pub use footprint::FOOTPRINTS_KEPT;
pub use ladder::{DEFAULT_PATIENCE, Ladder, Rung, RungChoice, RungReason, Standing, Target};
pub use ledger::{AskedLease, LeaseShare, LedgerState, OtherLease, OtherRequest};
pub use order::{Input, Order, Principal, PrincipalKind};
pub use reason::{Blocker, LeaveCause, Protection, WaitReason};
pub use scheduler::Scheduler;
pub use settings::{ClientRule, ClientRules, LoadFailurePolicy, MaxLoaded, Settings};
pub use slot::{LoadPhase, ReadyPhase, SlotState, StopPhase};
pub use time::Moment;
pub use view::{
    ClientView, DeviceView, Eviction, LayersView, ModelStatus, ModelView, PlanQuestion, PlanView, PlannedStep,
    QueuedView, RecentView, RequestPurpose, RungView, SlotView,
};
