//! Helpers for the scenarios.

use std::time::Duration;

use model_boss_lease::{
    Accounting, DeviceKey, Evidence, Grant, LeaseDurations, LeaseId, LeaseState, Ledger, Mode, Op, Outcome, Owner,
    OwnerKind, Process, ProcessUse, Record, Renewal, Request, Revocation, StoreTime, Token, Wait, Want, Yielding,
    apply,
};
use model_boss_protocol::{ByteCount, Priority};

pub(crate) fn at(seconds: u64) -> StoreTime {
    StoreTime(seconds * 1_000_000)
}

/// Each request has a holder of its own.
pub(crate) fn owner_of(id: &str) -> Process {
    process(1_000 + id.bytes().fold(0, |sum, byte| sum * 31 % 10_007 + u32::from(byte)))
}

pub(crate) fn process(pid: u32) -> Process {
    Process { pid, start_time: 5, pid_ns: "pid:[1]".to_owned() }
}

pub(crate) fn gpu(number: u32) -> DeviceKey {
    DeviceKey::gpu(format!("GPU-{number}"))
}

/// `cpu` with 90 bytes to lease, and `GPU-1` with 40.
pub(crate) fn ledger() -> Ledger {
    let mut ledger = Ledger::new("boot", Token(0), LeaseDurations::default());
    for (device, capacity) in [(DeviceKey::cpu(), 100), (gpu(1), 50)] {
        declare(&mut ledger, device, capacity, 10, Accounting::PerProcess);
    }
    ledger
}

pub(crate) fn declare(ledger: &mut Ledger, device: DeviceKey, capacity: u64, reserve: u64, accounting: Accounting) {
    let (name, capacity, reserve) = (device.to_string(), ByteCount(capacity), ByteCount(reserve));
    let now = ledger.last_time.max(at(1));
    let op = Op::Declare { device, name, capacity, reserve, accounting, by: OwnerKind::Coordinator };
    assert_eq!(apply(ledger, now, op), Outcome::Noted);
}

pub(crate) fn look(ledger: &mut Ledger, when: StoreTime, device: DeviceKey, used: u64, processes: &[(u32, u64)]) {
    let processes =
        processes.iter().map(|(pid, n)| ProcessUse { lineage: vec![process(*pid)], bytes: ByteCount(*n) }).collect();
    let observe = Op::Observe { device, used: Some(ByteCount(used)), processes, sampled_at: when };
    assert_eq!(apply(ledger, when, observe), Outcome::Noted);
}

/// A request that a test can vary.
#[allow(clippy::unwrap_used, reason = "the priorities of the stories exist")]
pub(crate) fn request(id: &str, priority: u8, parts: &[(DeviceKey, u64)]) -> Request {
    Request {
        request_id: id.to_owned(),
        lease: LeaseId::from(format!("lease-{id}")),
        owner: Owner::new(owner_of(id), id, OwnerKind::Coordinator),
        priority: Priority::new(priority).unwrap(),
        yielding: Yielding::default(),
        want: Want::Parts(parts.iter().map(|(device, bytes)| (device.clone(), ByteCount(*bytes))).collect()),
        mode: Mode::Try,
    }
}

pub(crate) fn ask(id: &str, parts: &[(DeviceKey, u64)]) -> Op {
    Op::Acquire(request(id, 5, parts))
}

pub(crate) fn wait(id: &str, priority: u8, parts: &[(DeviceKey, u64)]) -> Op {
    Op::Acquire(Request { mode: Mode::Wait, ..request(id, priority, parts) })
}

pub(crate) fn preempt(id: &str, priority: u8, parts: &[(DeviceKey, u64)]) -> Op {
    Op::Acquire(Request { mode: Mode::Preempt, ..request(id, priority, parts) })
}

/// A request whose lease may be revoked at once, with 30 s of grace.
pub(crate) fn preemptible(id: &str, priority: u8, parts: &[(DeviceKey, u64)]) -> Op {
    let (grace, min_hold, reload) = (Duration::from_secs(30), Duration::ZERO, Duration::ZERO);
    let yielding = Yielding { preemptible: true, grace, min_hold, reload };
    Op::Acquire(Request { yielding, ..request(id, priority, parts) })
}

pub(crate) fn granted(outcome: Outcome) -> Grant {
    match outcome {
        Outcome::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) fn waits(outcome: Outcome) -> Wait {
    match outcome {
        Outcome::Wait(wait) => wait,
        other => panic!("does not wait: {other:?}"),
    }
}

pub(crate) fn attach(grant: &Grant, pid: u32) -> Op {
    Op::Attach { lease: grant.lease.clone(), token: grant.token, process: process(pid), boot_id: "boot".to_owned() }
}

/// A lease that is granted, attached, and observed to use no bytes yet.
pub(crate) fn hold(ledger: &mut Ledger, when: StoreTime, op: Op, pid: u32) -> Grant {
    let grant = granted(apply(ledger, when, op));
    assert_eq!(apply(ledger, when, attach(&grant, pid)), Outcome::Attached);
    for (device, _) in &grant.parts {
        look(ledger, StoreTime(when.0 + 1), device.clone(), 0, &[]);
    }
    grant
}

pub(crate) fn release(grant: &Grant, evidence: Evidence) -> Op {
    Op::Release { lease: grant.lease.clone(), token: grant.token, evidence }
}

pub(crate) fn renew(grants: &[&Grant]) -> Op {
    Op::Renew { leases: grants.iter().map(|grant| Renewal::plain(grant.lease.clone(), grant.token)).collect() }
}

pub(crate) fn revocations(outcome: Outcome) -> Vec<Revocation> {
    match outcome {
        Outcome::Renewed { revoked, lost } => {
            assert!(lost.is_empty(), "{lost:?}");
            revoked
        }
        other => panic!("{other:?}"),
    }
}

/// The record of a grant that its holder keeps.
pub(crate) fn record(grant: &Grant, id: &str, pids: &[u32]) -> Record {
    let Request { request_id, owner, priority, yielding, .. } = request(id, 5, &[]);
    let (lease, token, parts) = (grant.lease.clone(), Some(grant.token), grant.parts.clone());
    let pids = pids.iter().map(|pid| process(*pid)).collect();
    Record { lease, token, request_id, owner, priority, yielding, parts, pids, boot_id: "boot".to_owned() }
}

pub(crate) fn state(ledger: &Ledger, grant: &Grant) -> Option<LeaseState> {
    ledger.leases.get(&grant.lease).map(|lease| lease.state.clone())
}
