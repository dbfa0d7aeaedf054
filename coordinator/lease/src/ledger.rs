//! The document: everything promised on one host. Data only; the rules are elsewhere.
//!
//! Each object keeps the fields it does not know, so that an older process never drops what a newer one wrote.

use std::collections::BTreeMap;
use std::time::Duration;

use model_boss_protocol::{ByteCount, Label};
use serde::{Deserialize, Serialize};

use crate::time::millis;
use crate::unknown::UnknownFields;
use crate::{Device, DeviceKey, Lease, LeaseId, Owner, Process, StoreTime, Token, Waiter};

/// The version of the document that this code writes. A process that finds a larger number may only renew and release.
pub const SCHEMA: u32 = 1;

/// Everything promised on one host since it was booted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ledger {
    /// The version of this document.
    pub schema: u32,
    /// The host's current boot; another boot is another ledger, because a reboot empties every device.
    pub boot_id: String,
    /// The store's process that this document was last read from, where another one may know less. `None`: a store
    /// that loses nothing it acknowledged, with a clock that never jumps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// The largest token given so far.
    pub fence: Token,
    /// The latest time seen.
    pub last_time: StoreTime,
    /// Until then nothing is granted, because records may have been lost: holders state theirs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovering_until: Option<StoreTime>,
    /// How long things last, the same for everyone who uses this ledger.
    pub terms: Terms,
    /// What can be leased.
    pub devices: BTreeMap<DeviceKey, Device>,
    /// What is leased. Every state is counted.
    pub leases: BTreeMap<LeaseId, Lease>,
    /// Who waits, by request id.
    #[serde(default)]
    pub waiters: BTreeMap<String, Waiter>,
    /// Request ids whose lease has ended, and when: a late duplicate gets no second lease.
    pub done: BTreeMap<String, StoreTime>,
    /// Leases that an operator ended without evidence, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forced: Vec<Forced>,
    #[serde(flatten)]
    unknown: UnknownFields,
}

/// A lease that an operator ended although nothing showed that its bytes are free.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Forced {
    /// Which lease.
    pub lease: LeaseId,
    /// Who held it.
    pub owner: Owner,
    /// The processes that were attached.
    pub pids: Vec<Process>,
    /// What it counted for on each device.
    pub parts: Vec<(DeviceKey, ByteCount)>,
    /// When.
    pub at: StoreTime,
    /// The operator, for people.
    pub by: Label,
    #[serde(flatten)]
    pub(crate) unknown: UnknownFields,
}

/// How long things last.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// A lease that is not renewed for this long expires; so does a place in the queue.
    #[serde(with = "millis")]
    pub lease: Duration,
    /// How often a holder renews.
    #[serde(with = "millis")]
    pub heartbeat: Duration,
    /// An observation older than this says nothing any more.
    #[serde(with = "millis")]
    pub stale: Duration,
    /// How long an ended request id is remembered.
    #[serde(with = "millis")]
    pub remembered: Duration,
    /// A clock that goes forward by more than this at once has jumped, if leases live.
    #[serde(with = "millis")]
    pub jump: Duration,
    /// The longest grace that a revoked lease is given, whatever it asked for.
    #[serde(with = "millis")]
    pub longest_grace: Duration,
    /// Degraded accounting: a load whose holder says nothing counts as complete after this.
    #[serde(with = "millis")]
    pub load: Duration,
    #[serde(flatten)]
    unknown: UnknownFields,
}

impl Ledger {
    /// An empty ledger of this boot. `fence` is what an earlier ledger reached, if one is known.
    pub fn new(boot_id: impl Into<String>, fence: Token, terms: Terms) -> Self {
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

    /// Takes over the terms of a coordinator that was started with others. A newer document is left alone.
    pub fn adopt(&mut self, terms: &Terms) {
        if self.schema <= SCHEMA {
            let unknown = std::mem::take(&mut self.terms.unknown);
            self.terms = Terms { unknown, ..terms.clone() };
        }
    }

    /// The bytes that leases hold on a device: what was promised or what is used, whichever is more, in every state.
    pub fn charged(&self, device: &DeviceKey) -> ByteCount {
        self.leases.values().map(|lease| lease.charged(device)).sum()
    }

    /// How long the recovery window stays open; `None` when it is closed.
    pub fn recovering(&self) -> Option<Duration> {
        self.recovering_until.map(|until| until.since(self.last_time)).filter(|left| !left.is_zero())
    }

    /// What people call the device.
    pub fn name_of(&self, device: &DeviceKey) -> String {
        self.devices.get(device).map_or_else(|| device.to_string(), |device| device.name.clone())
    }
}

impl Terms {
    /// How long nothing is granted after records may have been lost: every living holder is heard in this time.
    pub fn recovery(&self) -> Duration {
        self.lease.saturating_add(self.heartbeat.saturating_mul(2))
    }
}

impl Default for Terms {
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
