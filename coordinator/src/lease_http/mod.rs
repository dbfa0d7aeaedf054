//! The words of `/api/v1/leases`, one place for the server and for the callers. Plain data: what a field means to the
//! ledger is decided in `model-boss-lease`.
//!
//! Sizes are bytes or texts such as `"18GiB"`, durations seconds or texts such as `"60s"`, devices the names people use.

use std::time::Duration;

use model_boss_lease_store::{
    ForcedView, LeaseId, LeaseState, LeaseView, Owner, OwnerKind, PartView, Process, Proof, RevokeView, WaiterView,
    Wish,
};
use model_boss_protocol::{ByteCount, DeviceId, Label, Priority};
use serde::{Deserialize, Serialize};

/// `POST /api/v1/leases`: a wish. Asking again with the same `request_id` gives the same lease, or keeps the place in the
/// queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AcquireBody {
    /// The caller's name for it: at most [`Label::LIMIT`] bytes, unique among everything ever asked.
    pub(crate) request_id: String,
    /// Who will hold it.
    pub(crate) owner: OwnerBody,
    /// How important it is.
    #[serde(default = "training")]
    pub(crate) priority: Priority,
    /// Whether more important requests may ask for the memory back.
    #[serde(default)]
    pub(crate) preemptible: bool,
    /// How long it needs to give the memory back.
    #[serde(default = "grace", with = "span")]
    pub(crate) grace: Duration,
    /// How long it is left alone after it got the memory.
    #[serde(default = "min_hold", with = "span")]
    pub(crate) min_hold: Duration,
    /// So much on each of these devices. This or `any`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parts: Option<Vec<PartBody>>,
    /// So much on each of any devices. This or `parts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) any: Option<AnyBody>,
    /// `false`: try once, and never become a waiter.
    #[serde(default = "yes")]
    pub(crate) wait: bool,
    /// Ask less important holders that allow it to give memory back.
    #[serde(default)]
    pub(crate) preempt: bool,
}

/// Who holds a lease: the process that renews and releases it, known by more than its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OwnerBody {
    /// Its number.
    pub(crate) pid: u32,
    /// When it started, in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub(crate) start_time: u64,
    /// The pid namespace in which `pid` has a meaning: the number in `/proc/PID/ns/pid`, or that whole text.
    pub(crate) pid_ns: PidNamespace,
    /// For people: what it is. Printable, at most [`Label::LIMIT`] bytes.
    pub(crate) label: String,
}

/// A process behind the gate, as its holder remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProcessBody {
    /// Its number.
    pub(crate) pid: u32,
    /// When it started, in clock ticks since boot.
    pub(crate) start_time: u64,
    /// Where `pid` has a meaning.
    pub(crate) pid_ns: PidNamespace,
}

/// A pid namespace as the kernel writes it, `pid:[4026531836]`. The number alone is read too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct PidNamespace(#[serde(deserialize_with = "namespace")] pub(crate) String);

/// Bytes on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartBody {
    /// Where.
    pub(crate) device: DeviceId,
    /// How much.
    pub(crate) memory: ByteCount,
}

/// Bytes on each of any `count` devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnyBody {
    /// On how many.
    pub(crate) count: usize,
    /// How much on each.
    pub(crate) memory: ByteCount,
    /// Which may be chosen; every GPU when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) among: Option<Vec<DeviceId>>,
}

/// The answer 201 to a wish: the memory is promised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct GrantedBody {
    /// The lease, with its token.
    pub(crate) lease: LeaseBody,
    /// Renew this often.
    pub(crate) heartbeat_ms: u64,
    /// It expires so long after its last renewal.
    pub(crate) term_ms: u64,
}

/// The answer 202 to a wish: not now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct WaitingBody {
    /// Why, and when to ask again.
    pub(crate) waiting: Waiting,
}

/// Why a wish waits. Whoever does not ask again within the term loses the place in the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Waiting {
    /// The place in the queue, from 1.
    pub(crate) position: usize,
    /// Why, for people.
    pub(crate) reason: String,
    /// Ask again after so long.
    pub(crate) retry_after_ms: u64,
    /// The store may have lost records: nothing is granted until their holders have stated them.
    #[serde(default)]
    pub(crate) recovering: bool,
    /// Who was asked to give memory back for it.
    #[serde(default)]
    pub(crate) asked: Vec<AskedBody>,
}

/// Who was asked to give memory back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AskedBody {
    /// What it is for.
    pub(crate) label: String,
    /// How long it still has.
    pub(crate) grace_left_ms: u64,
}

/// A lease as the API shows it. The fields from `lease` on are those of the list since its first version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LeaseBody {
    /// Its name.
    pub(crate) id: LeaseId,
    /// What proves it. Told to its holder alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<Proof>,
    /// How long until it expires; `null` for one that does not.
    pub(crate) expires_in_ms: Option<u64>,
    /// It is asked back.
    pub(crate) revoke: Option<RevokeBody>,
    /// The same as `id`.
    pub(crate) lease: LeaseId,
    /// The same as `owner.label`.
    pub(crate) label: String,
    /// Who holds it.
    pub(crate) owner: Owner,
    /// How important it is.
    pub(crate) priority: Priority,
    /// How much on which device.
    pub(crate) parts: Vec<LeasePart>,
    /// How far it is.
    #[serde(with = "state")]
    pub(crate) state: LeaseState,
    /// Whether it may be asked back.
    pub(crate) preemptible: bool,
    /// Whether it was asked and did not make way in time.
    pub(crate) in_default: bool,
    /// The processes behind its gate.
    pub(crate) pids: Vec<u32>,
}

/// Bytes of a lease on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeasePart {
    /// What people call it.
    pub(crate) device: String,
    /// What it is, for `CUDA_VISIBLE_DEVICES`; `null` where it is no GPU.
    #[serde(default)]
    pub(crate) uuid: Option<String>,
    /// Promised.
    pub(crate) bytes: ByteCount,
    /// Used, where known.
    pub(crate) measured: Option<ByteCount>,
}

/// That a lease is asked back. With nothing left of the grace, its holder ends its processes now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RevokeBody {
    /// Why, for people.
    pub(crate) reason: String,
    /// Who asks.
    pub(crate) by: String,
    /// How long there still is.
    pub(crate) grace_left_ms: u64,
}

/// An answer with one lease: to attach, renew, resize, reassert and `GET /api/v1/leases/ID`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OneLease {
    /// The lease.
    pub(crate) lease: LeaseBody,
}

/// `POST /api/v1/leases/ID/attach`: the gate. Only after its answer may the processes touch the devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttachBody {
    /// What proves the lease.
    pub(crate) token: Proof,
    /// Who is let through.
    pub(crate) pids: Vec<u32>,
}

/// `PUT /api/v1/leases`: every lease of a process in one heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenewBody {
    /// Which.
    pub(crate) leases: Vec<HandleBody>,
}

/// A lease and what proves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HandleBody {
    /// Its name.
    pub(crate) id: LeaseId,
    /// What proves it.
    pub(crate) token: Proof,
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RenewedBody {
    /// What is kept, with its revocations.
    pub(crate) leases: Vec<LeaseBody>,
    /// What the ledger does not know: state it again, or end its processes.
    pub(crate) lost: Vec<LeaseId>,
}

/// `PUT /api/v1/leases/ID`: a heartbeat and, with `parts`, another size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResizeBody {
    /// What proves it.
    pub(crate) token: Proof,
    /// How much on which device from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parts: Option<Vec<PartBody>>,
}

/// `POST /api/v1/leases/ID/reassert`: a lease as its holder remembers it, after the store forgot it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReassertBody {
    /// What proves it.
    pub(crate) token: Proof,
    /// The request that it was granted for.
    pub(crate) request_id: String,
    /// Who holds it.
    pub(crate) owner: OwnerBody,
    /// How important it is.
    pub(crate) priority: Priority,
    /// Whether more important requests may ask for the memory back.
    #[serde(default)]
    pub(crate) preemptible: bool,
    /// How long it needs to give the memory back.
    #[serde(default = "grace", with = "span")]
    pub(crate) grace: Duration,
    /// How long it is left alone after it got the memory.
    #[serde(default = "min_hold", with = "span")]
    pub(crate) min_hold: Duration,
    /// How much on which device.
    pub(crate) parts: Vec<PartBody>,
    /// The processes behind its gate that still live.
    pub(crate) processes: Vec<ProcessBody>,
}

/// `DELETE /api/v1/leases/ID`. Without a token only what nobody holds any more ends, or what an operator forces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReleaseBody {
    /// What proves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<Proof>,
    /// Ends the lease whatever its processes do. For operators.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) force: bool,
}

/// The answer to a release: 200 when the bytes are free, 202 when they stay counted until the processes are seen gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReleasedBody {
    /// Whether the bytes are free.
    pub(crate) released: bool,
    /// How far the lease is otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<String>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Where it was forced: what that means, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) warning: Option<String>,
}

/// `DELETE /api/v1/leases`: takes a request back: its place in the queue, and its lease if no process was let through
/// the gate. Answered with 200 and `{"cancelled": true}`, also when there is nothing to take back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CancelBody {
    /// Which request.
    pub(crate) request_id: String,
    /// Who asked.
    pub(crate) owner: OwnerBody,
}

/// `GET /api/v1/leases`: who holds and who waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LeaseList {
    /// Who holds.
    pub(crate) leases: Vec<LeaseBody>,
    /// Who waits, first come first.
    #[serde(default)]
    pub(crate) waiters: Vec<WaiterBody>,
    /// What operators ended without evidence, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) forced: Vec<ForcedBody>,
}

/// A lease that an operator ended although its processes may still use its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForcedBody {
    /// Its name.
    pub(crate) id: LeaseId,
    /// What it was for.
    pub(crate) label: String,
    /// The processes that were behind its gate. They were not ended.
    pub(crate) pids: Vec<u32>,
    /// What it counted for.
    pub(crate) parts: Vec<ForcedPart>,
    /// How long ago.
    pub(crate) ago_ms: u64,
    /// The operator.
    pub(crate) by: String,
}

/// Bytes that a forced lease counted for on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForcedPart {
    /// What people call it.
    pub(crate) device: String,
    /// How much.
    pub(crate) bytes: ByteCount,
}

/// Somebody who waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WaiterBody {
    /// The place in the queue, from 1.
    pub(crate) position: usize,
    /// Its request.
    pub(crate) request_id: String,
    /// What it is for.
    pub(crate) label: String,
    /// How important it is.
    pub(crate) priority: Priority,
    /// So much on each of these devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parts: Option<Vec<PartBody>>,
    /// So much on each of any devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) any: Option<AnyBody>,
}

impl OwnerBody {
    /// This process, for the ledger.
    pub(crate) fn of(process: &Process, label: impl Into<Label>) -> Self {
        let Process { pid, start_time, pid_ns } = process.clone();
        Self { pid, start_time, pid_ns: PidNamespace(pid_ns), label: label.into().to_string() }
    }

    /// The same in the ledger's words.
    pub(crate) fn owner(&self) -> Owner {
        let Self { pid, start_time, pid_ns, label } = self.clone();
        Owner::new(Process { pid, start_time, pid_ns: pid_ns.0 }, label, OwnerKind::Job)
    }
}

impl From<Process> for ProcessBody {
    fn from(Process { pid, start_time, pid_ns }: Process) -> Self {
        Self { pid, start_time, pid_ns: PidNamespace(pid_ns) }
    }
}

impl From<ProcessBody> for Process {
    fn from(ProcessBody { pid, start_time, pid_ns }: ProcessBody) -> Self {
        Self { pid, start_time, pid_ns: pid_ns.0 }
    }
}

impl From<LeaseView> for LeaseBody {
    /// Without the token: that is told to the holder alone.
    fn from(view: LeaseView) -> Self {
        let part = |part: PartView| {
            let PartView { device, uuid, bytes, measured } = part;
            LeasePart { device, uuid, bytes, measured }
        };
        let revoke = |revoke: RevokeView| {
            let RevokeView { by, priority, grace_left } = revoke;
            let priority = priority.map(|priority| format!(" with priority {priority}")).unwrap_or_default();
            RevokeBody { reason: format!("{by}{priority} needs the memory"), by, grace_left_ms: millis(grace_left) }
        };
        Self {
            id: view.lease.clone(),
            token: None,
            expires_in_ms: view.expires_in.map(millis),
            revoke: view.revoke.map(revoke),
            lease: view.lease,
            label: view.label,
            owner: view.owner,
            priority: view.priority,
            parts: view.parts.into_iter().map(part).collect(),
            state: view.state,
            preemptible: view.preemptible,
            in_default: view.in_default,
            pids: view.pids,
        }
    }
}

impl From<ForcedView> for ForcedBody {
    fn from(view: ForcedView) -> Self {
        let ForcedView { lease: id, label, pids, parts, ago, by } = view;
        let parts = parts.into_iter().map(|(device, bytes)| ForcedPart { device, bytes }).collect();
        Self { id, label, pids, parts, ago_ms: millis(ago), by }
    }
}

/// What a forced release means, for people.
pub(crate) fn warning(forced: &ForcedView) -> String {
    let parts: Vec<String> = forced.parts.iter().map(|(device, bytes)| format!("{bytes} on {device}")).collect();
    let pids: Vec<String> = forced.pids.iter().map(ToString::to_string).collect();
    let (lease, label, parts, pids) = (&forced.lease, &forced.label, parts.join(", "), pids.join(", "));
    format!(
        "{lease} ({label}) was forced and counts no more for {parts}. Its processes were not ended ({pids}): what they \
         still use counts as foreign memory once a device shows it"
    )
}

impl From<WaiterView> for WaiterBody {
    fn from(view: WaiterView) -> Self {
        let WaiterView { position, request_id, label, priority, want } = view;
        let (mut parts, mut any) = (None, None);
        match want {
            Some(Wish::Parts(wanted)) => {
                let part = |(device, memory)| PartBody { device, memory };
                parts = Some(wanted.into_iter().map(part).collect());
            }
            Some(Wish::AnyOf { count, bytes, devices }) => {
                any = Some(AnyBody { count, memory: bytes, among: Some(devices) });
            }
            None => {}
        }
        Self { position, request_id, label, priority, parts, any }
    }
}

/// Whole milliseconds.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn namespace<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "the number of a pid namespace, such as 4026531836")]
    enum Form {
        Number(u64),
        Text(String),
    }
    let number = match Form::deserialize(deserializer)? {
        Form::Number(number) => number,
        Form::Text(text) => {
            let inner = text.strip_prefix("pid:[").and_then(|text| text.strip_suffix(']')).unwrap_or(&text);
            let bad = || format!("'{text}' is no pid namespace: write the number that /proc/self/ns/pid shows");
            inner.parse().map_err(|_| serde::de::Error::custom(bad()))?
        }
    };
    Ok(format!("pid:[{number}]"))
}

/// The default priority of training (LE-3).
pub(crate) const fn training() -> Priority {
    Priority::TRAINING
}

/// The default grace (LE-3).
pub(crate) const fn grace() -> Duration {
    Duration::from_secs(60)
}

/// The default minimum hold (LE-3).
pub(crate) const fn min_hold() -> Duration {
    Duration::from_secs(600)
}

const fn yes() -> bool {
    true
}

/// A duration as seconds or as a text with its unit.
pub(crate) mod span {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}ms", span.as_millis()))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "seconds as a number, or a duration such as \"60s\"")]
        enum Form {
            Seconds(f64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Seconds(seconds) => model_boss_protocol::span_of_secs(seconds).map_err(D::Error::custom),
            Form::Text(text) => model_boss_protocol::parse_span(&text).map_err(D::Error::custom),
        }
    }
}

/// States are small letters in the API and capitals in the ledger.
mod state {
    use model_boss_lease_store::LeaseState;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(state: &LeaseState, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match state {
            LeaseState::Pending => "pending",
            LeaseState::Active => "active",
            LeaseState::Revoking => "revoking",
            LeaseState::Limbo => "limbo",
            LeaseState::Other(other) => other,
        })
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LeaseState, D::Error> {
        Ok(match String::deserialize(deserializer)?.to_ascii_lowercase().as_str() {
            "pending" => LeaseState::Pending,
            "active" => LeaseState::Active,
            "revoking" => LeaseState::Revoking,
            "limbo" => LeaseState::Limbo,
            other => LeaseState::Other(other.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests;
