//! The ledger: one document with all promises of a host. It holds data only; the rules are in `rules`.
//!
//! Each object keeps unknown fields, so that an older process never drops fields that a newer one wrote.

use std::collections::BTreeMap;
use std::time::Duration;

use model_boss_protocol::{ByteCount, Label};
use serde::{Deserialize, Serialize};

use crate::time::millis;
use crate::unknown::UnknownFields;
use crate::{Device, DeviceKey, Lease, LeaseId, Owner, Process, StoreTime, Token, Waiter};

/// The version of the document that this code writes. A process that finds a larger number may only renew and release.
pub const SCHEMA: u32 = 1;

/// All promises on one host since its boot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ledger {
    /// The version of this document.
    pub schema: u32,
    /// The host's current boot. Another boot begins another ledger, because a reboot empties every device.
    pub boot_id: String,
    /// The store's process that this document was last read from. Another process may have lost writes. `None` means
    /// that no acknowledged write is ever lost, and that the clock never jumps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// The largest token granted so far.
    pub fence: Token,
    /// The latest time seen.
    pub last_time: StoreTime,
    /// The end of the recovery window. Until then no lease is granted, because records may have been lost and holders
    /// report theirs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovering_until: Option<StoreTime>,
    /// Durations that all users of this ledger share.
    pub terms: LeaseDurations,
    /// The devices that can be leased.
    pub devices: BTreeMap<DeviceKey, Device>,
    /// The leases. Their bytes count in every state.
    pub leases: BTreeMap<LeaseId, Lease>,
    /// The waiting requests, by request id.
    #[serde(default)]
    pub waiters: BTreeMap<String, Waiter>,
    /// Ids of requests whose lease ended, with the time: a late duplicate gets no second lease.
    pub done: BTreeMap<String, StoreTime>,
    /// Leases that an operator ended without evidence, the latest at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forced: Vec<Forced>,
    #[serde(flatten)]
    unknown: UnknownFields,
}

/// A lease that an operator ended although nothing showed that its bytes are free.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Forced {
    /// The lease that was ended.
    pub lease: LeaseId,
    /// The owner of the request.
    pub owner: Owner,
    /// The processes that were attached.
    pub pids: Vec<Process>,
    /// The bytes that the lease counted for on each device.
    pub parts: Vec<(DeviceKey, ByteCount)>,
    /// The time of the lease's end.
    pub at: StoreTime,
    /// The operator, human-readable.
    pub by: Label,
    #[serde(flatten)]
    pub(crate) unknown: UnknownFields,
}

/// The durations of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct LeaseDurations {
    /// The time after which a lease expires, or a place in the queue, unless renewed.
    #[serde(with = "millis")]
    pub lease: Duration,
    /// The interval at which a holder renews.
    #[serde(with = "millis")]
    pub heartbeat: Duration,
    /// The age beyond which an observation is worthless.
    #[serde(with = "millis")]
    pub stale: Duration,
    /// The time for which an ended request id is remembered.
    #[serde(with = "millis")]
    pub remembered: Duration,
    /// A larger step of the clock counts as a jump while there are leases.
    #[serde(with = "millis")]
    pub jump: Duration,
    /// The upper limit of a revoked lease's grace.
    #[serde(with = "millis")]
    pub longest_grace: Duration,
    /// Degraded accounting: the time after which a load counts as complete without a report of its holder.
    #[serde(with = "millis")]
    pub load: Duration,
    #[serde(flatten)]
    unknown: UnknownFields,
}

impl Ledger {
    /// An empty ledger of this boot. `fence` is the largest token of an earlier ledger, if one is known.
    pub fn new(boot_id: impl Into<String>, fence: Token, terms: LeaseDurations) -> Self {
        Self {
            schema: SCHEMA,
            boot_id: boot_id.into(),
            run_id: None,
            fence,
            last_time: StoreTime::default(),
            recovering_until: None,
            terms,
            devices: BTreeMap::new(),
            leases: BTreeMap::new(),
            waiters: BTreeMap::new(),
            done: BTreeMap::new(),
            forced: Vec::new(),
            unknown: UnknownFields::default(),
        }
    }

    /// Adopts the terms of a coordinator that was started with others. A newer document is not changed.
    pub fn adopt(&mut self, terms: &LeaseDurations) {
        if self.schema <= SCHEMA {
            let unknown = std::mem::take(&mut self.terms.unknown);
            self.terms = LeaseDurations { unknown, ..terms.clone() };
        }
    }

    /// The bytes that leases hold on a device: the larger of promised and used, in every state.
    pub fn charged(&self, device: &DeviceKey) -> ByteCount {
        self.leases.values().map(|lease| lease.charged(device)).sum()
    }

    /// The rest of the recovery window; `None` when it is closed.
    pub fn recovering(&self) -> Option<Duration> {
        self.recovering_until.map(|until| until.since(self.last_time)).filter(|left| !left.is_zero())
    }

    /// The device's human-readable name.
    pub fn name_of(&self, device: &DeviceKey) -> String {
        self.devices.get(device).map_or_else(|| device.to_string(), |device| device.name.clone())
    }
}

impl LeaseDurations {
    /// The length of the recovery window: in this time every living holder renews at least once.
    pub fn recovery(&self) -> Duration {
        self.lease.saturating_add(self.heartbeat.saturating_mul(2))
    }
}

impl Default for LeaseDurations {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            heartbeat: Duration::from_secs(3),
            stale: Duration::from_secs(10),
            remembered: Duration::from_secs(600),
            jump: Duration::from_secs(60),
            longest_grace: Duration::from_secs(300),
            load: Duration::from_secs(60),
            unknown: UnknownFields::default(),
        }
    }
}
