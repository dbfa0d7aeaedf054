//! Why a request waits, in one value that feeds the API, the stream comments, the metrics and the tests.

use std::fmt;
use std::time::Duration;

use model_boss_protocol::{ByteCount, Category, ClientId, DeviceId, ModelId, Priority};
use serde::Serialize;

use crate::phase::LoadPhase;
use crate::{AskedLease, LeaseShare};

/// What a waiting request waits for. `Display` is one short line for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum WaitReason {
    /// Its model is being loaded.
    Loading {
        /// Which model.
        model: ModelId,
        /// How far the load is.
        phase: LoadPhase,
        /// Share of the weights read, 0 to 1.
        progress: f32,
    },
    /// Its model works on as many requests as it takes at once.
    Busy {
        /// Which model.
        model: ModelId,
        /// Requests it works on.
        running: usize,
        /// Requests it takes at once.
        max_concurrent: u32,
    },
    /// Loads on a device happen one after another, and another model has its turn.
    Turn {
        /// Which device.
        device: DeviceId,
        /// Whose turn it is.
        model: ModelId,
    },
    /// There is no room, and nothing that this request may take.
    Capacity {
        /// The device that came nearest.
        device: DeviceId,
        /// What the model needs there.
        needs: ByteCount,
        /// What is free there now.
        free: ByteCount,
        /// Who holds the rest, and why it may not be taken.
        blockers: Vec<Blocker>,
        /// Leases of others there, and requests of others that come first.
        leases: Vec<LeaseShare>,
        /// What programs without a lease use there.
        foreign: ByteCount,
    },
    /// Others were asked to give their leases back.
    LeaseRevoking {
        /// Where.
        device: DeviceId,
        /// Who, and how long they still have.
        asked: Vec<AskedLease>,
    },
    /// Models were asked to leave to make room for this one.
    Reclaiming {
        /// Where.
        device: DeviceId,
        /// Those that still hold memory.
        victims: Vec<ModelId>,
    },
    /// The loaded copy of its model is leaving; a new one comes after it.
    Leaving {
        /// Which model.
        model: ModelId,
        /// Why its copy leaves.
        cause: LeaveCause,
    },
    /// The lease ledger does not give the memory now.
    LeaseRefused {
        /// The ledger's words.
        detail: String,
        /// When it is asked again.
        #[serde(rename = "retry_in_ms", serialize_with = "crate::time::as_millis")]
        retry_in: Duration,
    },
    /// The store of the lease ledger is out of reach: nothing is loaded until it is back.
    LedgerAway {
        /// Why, for people.
        detail: String,
    },
    /// The store may have lost records: nothing is granted until every holder had the time to state its own.
    LedgerRecovering {
        /// When that is over at the latest.
        #[serde(rename = "retry_in_ms", serialize_with = "crate::time::as_millis")]
        retry_in: Duration,
    },
    /// The model failed and is tried again later.
    BackingOff {
        /// Which model.
        model: ModelId,
        /// Failures in a row.
        failures: u32,
        /// What went wrong last.
        detail: String,
        /// When it is tried again.
        #[serde(rename = "retry_in_ms", serialize_with = "crate::time::as_millis")]
        retry_in: Duration,
    },
    /// As many models of its category are loaded as may be (MM-1), and none that this request may take.
    Limit {
        /// Which category.
        category: Category,
        /// How many may be loaded.
        limit: usize,
        /// Those that are, and why they stay.
        blockers: Vec<Blocker>,
    },
    /// It needs a device for itself alone that others use (MM-5).
    Exclusive {
        /// Which device.
        device: DeviceId,
        /// Who uses it, and why they stay.
        blockers: Vec<Blocker>,
    },
    /// A load that failed is tried once more with nothing else loaded; until then no other load begins (MM-4).
    SecondTry {
        /// Whose load failed.
        model: ModelId,
        /// Those that still leave.
        victims: Vec<ModelId>,
    },
    /// An operator freed its device for something else (RC-30).
    DeviceClosed {
        /// Which device.
        device: DeviceId,
    },
    /// The driver of its device does not list it any more. After a while such requests are refused.
    DeviceLost {
        /// Which device.
        device: DeviceId,
    },
    /// The memory of the device could not be observed, and unknown is not zero (RC-21).
    DeviceUnknown {
        /// Which device.
        device: DeviceId,
    },
    /// The worker lost a request; the slot rests until it is known whether the worker lives.
    WorkerLost {
        /// Which model.
        model: ModelId,
    },
    /// As many requests of its client run as may.
    ClientLimit {
        /// Which client.
        client: ClientId,
        /// Its requests that run.
        running: u32,
        /// How many may.
        limit: u32,
    },
    /// The pause after the last request of its client is not over.
    Cooldown {
        /// Which client.
        client: ClientId,
        /// When it is.
        #[serde(rename = "retry_in_ms", serialize_with = "crate::time::as_millis")]
        retry_in: Duration,
    },
    /// Accepted in this very moment.
    Queued,
}

/// A slot that holds memory somebody needs, and why it keeps it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Blocker {
    /// Whose slot.
    pub model: ModelId,
    /// What it holds on the device.
    pub bytes: ByteCount,
    /// Why it may not be taken.
    pub why: Protection,
}

/// Why a slot may not be taken by a request (RC-18, RC-19).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Protection {
    /// Its manifest pins it.
    Pinned,
    /// It is being loaded for somebody.
    Loading,
    /// The request it was loaded for has not started yet.
    CauseWaits,
    /// It is more important.
    MoreImportant {
        /// How important.
        rank: Priority,
    },
    /// It is as important, and it has served for less than its hold.
    Hold,
    /// It is as important, and requests that came before wait for it.
    QueuedBefore,
    /// It leaves for a request that is no less important.
    Claimed,
}

/// Why a slot leaves or left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaveCause {
    /// To make room for another model.
    Eviction {
        /// For which one.
        room_for: ModelId,
    },
    /// An operator asked.
    Unload,
    /// Nobody used it for its stay-warm time.
    Idle,
    /// Its manifest or its weights changed.
    Replaced,
    /// Its manifest is gone.
    Removed,
    /// Its device was freed for something else (RC-30).
    Freed,
    /// The driver of its device does not list it any more.
    DeviceLost,
    /// Idle models kept more memory than they may (BC-1, BC-2).
    Retention,
    /// Other programs used memory that it holds (RC-21).
    Foreign,
    /// Idle, and somebody more important waits for a lease (LE-3).
    Yielded {
        /// Who, for people.
        to: String,
    },
    /// Somebody more important asked for its lease.
    Revoked {
        /// Who, for people.
        by: String,
        /// How important that is.
        priority: Priority,
    },
    /// It serves from another place now (DM-5).
    Moved,
    /// It comes back with other settings (RC-29).
    Reload,
    /// Idle, and it comes back with all its layers where they live: there is room for them now (RS-11).
    RoomToStay,
    /// Room for another try of a load that failed (MM-4).
    SecondTry {
        /// Whose load.
        room_for: ModelId,
    },
    /// Its load went on for nobody, and another model wants the device.
    Unwanted,
    /// The process ends.
    Shutdown,
    /// Its worker went away by itself.
    Crash,
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
