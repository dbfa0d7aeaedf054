//! Reasons for waiting, in one type for the API, the stream comments, the metrics and the tests.

use std::fmt;
use std::time::Duration;

use model_boss_protocol::{ByteCount, Category, ClientId, DeviceId, ModelId, Priority};
use schemars::JsonSchema;
use serde::Serialize;

use crate::phase::LoadPhase;
use crate::{AskedLease, LeaseShare};

/// The reason why a request waits. `Display` is one short human-readable line.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum WaitReason {
    /// The request's model is being loaded.
    Loading {
        /// The model of the request.
        model: ModelId,
        /// The progress of the load.
        phase: LoadPhase,
        /// The share of the weights read, 0 to 1.
        progress: f32,
    },
    /// The request's model is serving as many requests as it takes at once.
    Busy {
        /// The model of the request.
        model: ModelId,
        /// The number of the model's running requests.
        running: usize,
        /// The number of requests the model takes at once.
        max_concurrent: u32,
    },
    /// Loads on a device run one after another, and it is another model's turn.
    Turn {
        /// The device that is loading.
        device: DeviceId,
        /// The model whose turn it is.
        model: ModelId,
    },
    /// No device has enough free memory, and this request may evict no slot.
    Capacity {
        /// The device with the smallest shortage.
        device: DeviceId,
        /// The bytes that the model needs on this device.
        needs: ByteCount,
        /// The bytes that are free on this device now.
        free: ByteCount,
        /// The slots with the other bytes, and why they may not be evicted.
        blockers: Vec<Blocker>,
        /// Leases of other holders on the device, and requests of theirs that have precedence.
        leases: Vec<LeaseShare>,
        /// The bytes that programs without a lease use on this device.
        foreign: ByteCount,
    },
    /// Leases of other holders were revoked, and are not released yet.
    LeaseRevoking {
        /// The device of the leases.
        device: DeviceId,
        /// The leases, and the time left for each.
        asked: Vec<AskedLease>,
    },
    /// Slots are being evicted to make room for this model.
    Reclaiming {
        /// The device of the room.
        device: DeviceId,
        /// The victims that still hold memory.
        victims: Vec<ModelId>,
    },
    /// The loaded copy of the request's model is stopping; a new one follows it.
    Leaving {
        /// The model of the request.
        model: ModelId,
        /// The cause of the stop.
        cause: LeaveCause,
    },
    /// The lease ledger does not grant the memory now.
    LeaseRefused {
        /// The ledger's message.
        detail: String,
        /// The time until the next request to the ledger.
        #[serde(rename = "retry_in_ms", serialize_with = "crate::time::as_millis")]
        #[schemars(with = "u64")]
        retry_in: Duration,
    },
    /// The store of the lease ledger cannot be reached: no model is loaded until it can.
    LedgerAway {
        /// The reason, human-readable.
        detail: String,
    },
    /// The store may have lost records: no lease is granted until every holder has had time to report its own.
    LedgerRecovering {
        /// The longest time until leases are granted again.
        #[serde(rename = "retry_in_ms", serialize_with = "crate::time::as_millis")]
        #[schemars(with = "u64")]
        retry_in: Duration,
    },
    /// The model failed and is in backoff.
    BackingOff {
        /// The model of the request.
        model: ModelId,
        /// The number of failures in a row.
        failures: u32,
        /// The message of the last failure.
        detail: String,
        /// The time until the next load.
        #[serde(rename = "retry_in_ms", serialize_with = "crate::time::as_millis")]
        #[schemars(with = "u64")]
        retry_in: Duration,
    },
    /// The limit of loaded models in its category is reached (MM-1), and this request may evict none of them.
    Limit {
        /// The limited category.
        category: Category,
        /// The number that may be loaded.
        limit: usize,
        /// The loaded models, and why they stay.
        blockers: Vec<Blocker>,
    },
    /// The model needs a device for itself alone that others use (MM-5).
    Exclusive {
        /// The needed device.
        device: DeviceId,
        /// The slots that use the device, and why they stay.
        blockers: Vec<Blocker>,
    },
    /// A load that failed is tried once more with no other model loaded; until then no other load begins (MM-4).
    SecondTry {
        /// The model whose load failed.
        model: ModelId,
        /// The slots that have not stopped yet.
        victims: Vec<ModelId>,
    },
    /// An operator freed the request's device for something else (RC-30).
    DeviceClosed {
        /// The closed device.
        device: DeviceId,
    },
    /// The driver of the request's device does not list it any more. After a while such requests are refused.
    DeviceLost {
        /// The lost device.
        device: DeviceId,
    },
    /// The memory of the device could not be observed, and unknown is not zero (RC-21).
    DeviceUnknown {
        /// The unknown device.
        device: DeviceId,
    },
    /// The worker lost a request. No other is dispatched to it until it is known whether the worker is alive.
    WorkerLost {
        /// The model of the request.
        model: ModelId,
    },
    /// The request's client has as many running requests as its limit permits.
    ClientLimit {
        /// The limited client.
        client: ClientId,
        /// The number of the client's running requests.
        running: u32,
        /// The number allowed.
        limit: u32,
    },
    /// The pause after the last request of its client is not over.
    Cooldown {
        /// The limited client.
        client: ClientId,
        /// The rest of the pause.
        #[serde(rename = "retry_in_ms", serialize_with = "crate::time::as_millis")]
        #[schemars(with = "u64")]
        retry_in: Duration,
    },
    /// The request was accepted at this moment.
    Queued,
}

/// A slot with memory that another model needs, and the reason why it keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Blocker {
    /// The slot's model.
    pub model: ModelId,
    /// The bytes the slot holds on the device.
    pub bytes: ByteCount,
    /// The reason why the slot may not be evicted.
    pub why: Protection,
}

/// The reason why a request may not evict a slot (RC-18, RC-19).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protection {
    /// The model is pinned.
    Pinned,
    /// The model is being loaded for a request.
    Loading,
    /// The request the slot was loaded for has not been dispatched yet.
    CauseWaits,
    /// The slot is more important than the request.
    MoreImportant {
        /// The slot's rank.
        rank: Priority,
    },
    /// The slot is as important, and its minimum hold is not over.
    Hold,
    /// The slot is as important and wanted, and the model that asks for its place was evicted itself a moment ago.
    JustEvicted,
    /// The slot is as important, and earlier requests wait for it.
    QueuedBefore,
    /// The slot is being evicted for a request that is no less important.
    Claimed,
}

/// The cause for which a slot stops or stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LeaveCause {
    /// The room was needed for another model.
    Eviction {
        /// The model that needs the room.
        room_for: ModelId,
    },
    /// An operator unloaded the model.
    Unload,
    /// The model was unused for its stay-warm time.
    Idle,
    /// The model's manifest or its weights changed.
    Replaced,
    /// The model's manifest was removed.
    Removed,
    /// The slot's device was freed for another purpose (RC-30).
    Freed,
    /// The driver of the slot's device does not list it any more.
    DeviceLost,
    /// Idle models kept more memory than they may (BC-1, BC-2).
    Retention,
    /// Other programs needed the memory that the slot held (RC-21).
    Foreign,
    /// The slot was idle, and a more important request waits for a lease (LE-3).
    Yielded {
        /// The label of that request, human-readable.
        to: String,
    },
    /// The slot's lease was revoked for a more important request.
    Revoked {
        /// The label of that request, human-readable.
        by: String,
        /// The priority of that request.
        priority: Priority,
    },
    /// A copy of the model on another device took over (DM-5).
    Moved,
    /// The model is reloaded with other settings (RC-29).
    Reload,
    /// The slot was idle and streaming. The model is reloaded with all layers resident, because they fit now (RS-11).
    RoomToStay,
    /// Room was needed for a second try of a failed load (MM-4).
    SecondTry {
        /// The model of the failed load.
        room_for: ModelId,
    },
    /// No request waited for the model's load any more, and another model needs the device.
    Unwanted,
    /// The process is shutting down.
    Shutdown,
    /// The slot's worker died.
    Crash,
}

impl LeaveCause {
    /// Whether a worker that ends for this cause has the time to park its prefixes, and its model a use for them. A
    /// revoked lease has a deadline; changed files make them useless.
    pub const fn parks(&self) -> bool {
        match self {
            Self::Eviction { .. }
            | Self::Unload
            | Self::Idle
            | Self::Freed
            | Self::Retention
            | Self::Foreign
            | Self::Yielded { .. }
            | Self::Moved
            | Self::Reload
            | Self::RoomToStay
            | Self::SecondTry { .. }
            | Self::Shutdown => true,
            Self::Replaced | Self::Removed | Self::DeviceLost | Self::Revoked { .. } | Self::Unwanted | Self::Crash => {
                false
            }
        }
    }
}

impl LeaveCause {
    /// The model that the room is for.
    pub const fn room_for(&self) -> Option<&ModelId> {
        match self {
            Self::Eviction { room_for } | Self::SecondTry { room_for } => Some(room_for),
            _ => None,
        }
    }
}

impl WaitReason {
    /// The reason as one word, which the API has in `reason`.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Loading { .. } => "loading",
            Self::Busy { .. } => "busy",
            Self::Turn { .. } => "turn",
            Self::Capacity { .. } => "capacity",
            Self::LeaseRevoking { .. } => "lease_revoking",
            Self::Reclaiming { .. } => "reclaiming",
            Self::Leaving { .. } => "leaving",
            Self::LeaseRefused { .. } => "lease_refused",
            Self::LedgerAway { .. } => "ledger_away",
            Self::LedgerRecovering { .. } => "ledger_recovering",
            Self::BackingOff { .. } => "backing_off",
            Self::Limit { .. } => "limit",
            Self::Exclusive { .. } => "exclusive",
            Self::SecondTry { .. } => "second_try",
            Self::DeviceClosed { .. } => "device_closed",
            Self::DeviceLost { .. } => "device_lost",
            Self::DeviceUnknown { .. } => "device_unknown",
            Self::WorkerLost { .. } => "worker_lost",
            Self::ClientLimit { .. } => "client_limit",
            Self::Cooldown { .. } => "cooldown",
            Self::Queued => "queued",
        }
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loading { model, phase: LoadPhase::Weights, progress } => {
                write!(f, "loading {model} {:.0}%", (progress.clamp(0.0, 1.0) * 100.0).floor())
            }
            Self::Loading { model, phase: LoadPhase::AwaitingLease, .. } => write!(f, "reserving memory for {model}"),
            Self::Loading { model, phase: LoadPhase::Spawning, .. } => write!(f, "starting {model}"),
            Self::Busy { model, running, max_concurrent } => {
                write!(f, "{model} works on {running} of {max_concurrent} requests")
            }
            Self::Turn { device, model } => write!(f, "waiting until {model} is loaded on {device}"),
            Self::Capacity { device, needs, free, blockers, leases, foreign } => {
                write!(f, "waiting for memory on {device}: needs {needs}, {free} free")?;
                list(f, blockers)?;
                leases.iter().try_for_each(|lease| write!(f, "; {lease}"))?;
                if *foreign > ByteCount::ZERO { write!(f, "; other programs use {foreign}") } else { Ok(()) }
            }
            Self::LeaseRevoking { device, asked } => {
                write!(f, "waiting for memory on {device}: asked to make way: ")?;
                for (i, lease) in asked.iter().enumerate() {
                    write!(f, "{}{lease}", if i == 0 { "" } else { "; " })?;
                }
                Ok(())
            }
            Self::Reclaiming { device, victims } => {
                write!(f, "making room on {device}: waiting for ")?;
                for (i, victim) in victims.iter().enumerate() {
                    write!(f, "{}{victim}", if i == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
            Self::Leaving { model, cause } => write!(f, "{model} is leaving ({cause}) and comes back after that"),
            Self::LeaseRefused { detail, .. } => write!(f, "waiting for a lease: {detail}"),
            Self::LedgerAway { detail } => write!(f, "no memory can be leased: {detail}"),
            Self::LedgerRecovering { retry_in } => write!(
                f,
                "the lease store may have lost records, nothing is granted for {:.0} s more",
                retry_in.as_secs_f64().ceil()
            ),
            Self::BackingOff { model, failures, detail, retry_in } => write!(
                f,
                "{model} failed {failures} times in a row, next try in {:.0} s: {detail}",
                retry_in.as_secs_f64().ceil()
            ),
            Self::Limit { category, limit, blockers } => {
                write!(f, "at most {limit} {category} models may be loaded")?;
                list(f, blockers)
            }
            Self::Exclusive { device, blockers } => {
                write!(f, "needs {device} for itself")?;
                list(f, blockers)
            }
            Self::SecondTry { model, victims } => {
                write!(f, "{model} failed to load and is tried once more with nothing else loaded")?;
                for (i, victim) in victims.iter().enumerate() {
                    write!(f, "{}{victim}", if i == 0 { "; waiting for " } else { ", " })?;
                }
                Ok(())
            }
            Self::DeviceClosed { device } => write!(f, "{device} was freed for something else"),
            Self::DeviceLost { device } => {
                write!(f, "{device} is gone: its driver does not list it any more; waiting until it is seen again")
            }
            Self::DeviceUnknown { device } => write!(f, "the memory of {device} is not known at the moment"),
            Self::WorkerLost { model } => write!(f, "the worker of {model} went away"),
            Self::ClientLimit { client, running, limit } => {
                write!(f, "client {client} has {running} of {limit} requests running")
            }
            Self::Cooldown { client, retry_in } => {
                write!(f, "client {client} pauses between requests, {:.0} s more", retry_in.as_secs_f64().ceil())
            }
            Self::Queued => f.write_str("queued"),
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, blockers: &[Blocker]) -> fmt::Result {
    for (i, blocker) in blockers.iter().enumerate() {
        write!(f, "{}{blocker}", if i == 0 { "; " } else { ", " })?;
    }
    Ok(())
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} holds {} ({})", self.model, self.bytes, self.why)
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinned => f.write_str("pinned"),
            Self::Loading => f.write_str("loading"),
            Self::CauseWaits => f.write_str("loaded for a request that has not started"),
            Self::MoreImportant { rank } => write!(f, "more important, rank {rank}"),
            Self::Hold => f.write_str("as important, within its hold"),
            Self::JustEvicted => f.write_str("as important and wanted, and the model that waits has just had its turn"),
            Self::Claimed => f.write_str("leaves for another model already"),
            Self::QueuedBefore => f.write_str("as important, earlier requests wait for it"),
        }
    }
}

impl fmt::Display for LeaveCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eviction { room_for } => write!(f, "room for {room_for}"),
            Self::Unload => f.write_str("unloaded by an operator"),
            Self::Idle => f.write_str("idle"),
            Self::Replaced => f.write_str("its manifest or weights changed"),
            Self::Removed => f.write_str("its manifest is gone"),
            Self::Freed => f.write_str("its device was freed"),
            Self::DeviceLost => f.write_str("its device is gone"),
            Self::Retention => f.write_str("idle, over the memory that idle models may keep"),
            Self::Foreign => f.write_str("idle, and other programs need the memory"),
            Self::Yielded { to } => write!(f, "idle, and '{to}' waits for its memory"),
            Self::Revoked { by, priority } => write!(f, "'{by}' (priority {priority}) asked for its memory"),
            Self::Moved => f.write_str("moved"),
            Self::Reload => f.write_str("loaded again with other settings"),
            Self::RoomToStay => f.write_str("idle, and loaded again: there is room for all its layers now"),
            Self::SecondTry { room_for } => write!(f, "room for another try of {room_for}, whose load failed"),
            Self::Unwanted => f.write_str("nobody waits for it any more"),
            Self::Shutdown => f.write_str("shutting down"),
            Self::Crash => f.write_str("its worker went away"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn en_3_prefixes_are_parked_where_there_is_time_and_a_use_for_them() {
        let (room_for, priority) = (ModelId::from("m"), Priority::INTERACTIVE);
        assert!(LeaveCause::Eviction { room_for }.parks() && LeaveCause::Idle.parks() && LeaveCause::Shutdown.parks());
        assert!(!LeaveCause::Revoked { by: "job".to_owned(), priority }.parks(), "a revocation has a deadline");
        assert!(!LeaveCause::Crash.parks() && !LeaveCause::DeviceLost.parks() && !LeaveCause::Replaced.parks());
    }

    #[test]
    fn the_word_of_a_reason_is_that_of_the_api() {
        let (model, device, none) = (ModelId::from("m"), DeviceId::Cpu, Duration::ZERO);
        let (client, detail, limit) = (ClientId::from("c"), String::new(), 1);
        let bytes = ByteCount::ZERO;
        for reason in [
            WaitReason::Loading { model: model.clone(), phase: LoadPhase::Spawning, progress: 0.0 },
            WaitReason::Busy { model: model.clone(), running: 1, max_concurrent: 1 },
            WaitReason::Turn { device: device.clone(), model: model.clone() },
            WaitReason::Capacity {
                device: device.clone(),
                needs: bytes,
                free: bytes,
                blockers: Vec::new(),
                leases: Vec::new(),
                foreign: bytes,
            },
            WaitReason::LeaseRevoking { device: device.clone(), asked: Vec::new() },
            WaitReason::Reclaiming { device: device.clone(), victims: Vec::new() },
            WaitReason::Leaving { model: model.clone(), cause: LeaveCause::Idle },
            WaitReason::LeaseRefused { detail: detail.clone(), retry_in: none },
            WaitReason::LedgerAway { detail: detail.clone() },
            WaitReason::LedgerRecovering { retry_in: none },
            WaitReason::BackingOff { model: model.clone(), failures: 1, detail, retry_in: none },
            WaitReason::Limit { category: Category::Llm, limit: 1, blockers: Vec::new() },
            WaitReason::Exclusive { device: device.clone(), blockers: Vec::new() },
            WaitReason::SecondTry { model: model.clone(), victims: Vec::new() },
            WaitReason::DeviceClosed { device: device.clone() },
            WaitReason::DeviceLost { device: device.clone() },
            WaitReason::DeviceUnknown { device },
            WaitReason::WorkerLost { model },
            WaitReason::ClientLimit { client: client.clone(), running: 1, limit },
            WaitReason::Cooldown { client, retry_in: none },
            WaitReason::Queued,
        ] {
            assert_eq!(serde_json::to_value(&reason).unwrap()["reason"], reason.word());
        }
    }
}
